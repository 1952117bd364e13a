/* Flags and variables: their forms, their names, and what is rejected in which words. */
#include "config_fixture.h"

TEST(test_both_forms)
{
    FLAGS(NULL, "--port", "1", "--host=::", "--demo", "--check");
    assert_int_equal(fixture->config.options.port, 1);
    assert_string_equal(fixture->config.options.host, "::");
    assert_true(fixture->config.demo);
    assert_true(fixture->config.check);
    FLAGS(NULL, "--port=2", "--help", "--config", "a=b.json", "--models=--x");
    assert_int_equal(fixture->config.options.port, 2);
    assert_string_equal(fixture->config.config_path, "a=b.json");
    assert_string_equal(fixture->config.models_dir, "--x");
    expect(bag_config_apply_flags(&fixture->config, 0, NULL, &fixture->problem), NULL);
}

TEST(test_rejected_flags)
{
    FLAGS("--port 99999: must be from 0 to 65535", "--port", "99999");
    FLAGS("--port 99999: must be from 0 to 65535", "--port=99999");
    FLAGS("--port -1: must be from 0 to 65535", "--port", "-1");
    FLAGS("--port 80x: must be an integer from 0 to 65535", "--port", "80x");
    FLAGS("--port '': must be an integer from 0 to 65535", "--port=");
    FLAGS("--port \\x0a\\x1b: must be an integer from 0 to 65535", "--port", "\n\x1b");
    FLAGS("--idle-timeout-s 0: must be from 1 to 86400 seconds", "--idle-timeout-s", "0");
    FLAGS("--port: a value is missing; it must be an integer from 0 to 65535", "--port");
    FLAGS("--host: a value is missing; it must be a text of 1 to 255 bytes", "--host", "--port",
          "80");
    FLAGS("--table: a value is missing; it must be NAME=PATH", "--table");
    FLAGS("--demo takes no value", "--demo=1");
    FLAGS("--help takes no value", "--help=x");
    FLAGS("unexpected argument 'items.npy'; flags begin with --, and --help lists them",
          "items.npy");
    FLAGS("unexpected argument '-p'; flags begin with --, and --help lists them", "-p", "80");
    FLAGS("unexpected argument 'yes'; flags begin with --, and --help lists them", "--demo", "yes");
    FLAGS("unknown flag --prot; did you mean --port?", "--prot", "80");
    FLAGS("unknown flag --tabel; did you mean --table?", "--tabel=items=x");
    FLAGS("unknown flag --log_level; did you mean --log-level?", "--log_level=info");
    FLAGS("unknown flag --max-body; did you mean --max-body-bytes?", "--max-body", "1");
}

TEST(test_tables)
{
    FLAGS(NULL, "--table", "items=items.npy", "--table=users=a=b.npy");
    assert_int_equal(fixture->config.num_models, 2);
    assert_string_equal(fixture->config.models[0].name, "items");
    assert_string_equal(fixture->config.models[0].path, "items.npy");
    assert_string_equal(fixture->config.models[0].version, "1");
    assert_string_equal(fixture->config.models[1].name, "users");
    assert_string_equal(fixture->config.models[1].path, "a=b.npy");
    FLAGS("--table items: write NAME=PATH", "--table", "items");
    FLAGS("--table items=: write NAME=PATH", "--table", "items=");
    FLAGS("--table =items.npy: write NAME=PATH", "--table", "=items.npy");
    FLAGS("--table =: write NAME=PATH", "--table", "=");
    FLAGS("--table items=b.npy: model 'items' version 1 is named twice: 'items.npy' and 'b.npy'",
          "--table", "items=b.npy");
    FLAGS("--table a/b=c: model name 'a/b' must be 1 to 128 of A-Z a-z 0-9 . _ - with no dot in "
          "front",
          "--table", "a/b=c");
    assert_int_equal(fixture->config.num_models, 2);
}

TEST(test_synthetic_tables)
{
    static const char *const rejected[] = {"items",      "=5x2",          "items=5",
                                           "items=0x2",  "items=5x0",     "items=5x2x3",
                                           "items=5x-1", "items=5x65537", "mlperf"};
    for (size_t i = 0; i < sizeof rejected / sizeof *rejected; i++) {
        char expected[256];
        snprintf(expected, sizeof expected,
                 "--synthetic %s: write NAME=ROWSxELEMENTS, such as items=1000000x64, or "
                 "mlperf-dlrm-v2 or mlperf-dlrm-v3",
                 rejected[i]);
        FLAGS(expected, "--synthetic", rejected[i]);
    }
    FLAGS(NULL, "--synthetic", "items=5x2");
    assert_string_equal(fixture->config.models[0].name, "items");
    assert_string_equal(fixture->config.models[0].path, "synthetic:items=5x2");
    FLAGS("--synthetic b=5x2: 'datatype' is no key=value", "--synthetic", "b=5x2,datatype");
    FLAGS("--synthetic c=5x2: unknown key 'row'; did you mean 'row_format'?", "--synthetic",
          "c=5x2,row=1");
    FLAGS("--synthetic-bytes is for --synthetic mlperf-dlrm-v2 and mlperf-dlrm-v3",
          "--synthetic-bytes", "1GiB");
    FLAGS("--synthetic-bytes 1k: must be a size such as 8GiB, from 1 MiB to 1 TiB",
          "--synthetic-bytes", "1k");
}

/* The small tables stay whole; the large ones are as long as each other. */
TEST(test_synthetic_preset)
{
    FLAGS(NULL, "--synthetic-bytes", "64MiB", "--synthetic", "mlperf-dlrm-v2");
    const struct bag_model_config *models = fixture->config.models;
    assert_int_equal(fixture->config.num_models, 27);
    assert_string_equal(models[0].path, "synthetic:f0=8569x128");
    assert_string_equal(models[5].path, "synthetic:f5=3x128");
    assert_string_equal(models[25].path, "synthetic:f25=36x128");
    assert_int_equal(models[0].datatype, BAG_DTYPE_COUNT);
    assert_string_equal(models[26].name, "dlrm");
    assert_null(models[26].path);
    assert_int_equal(models[26].num_features, 26);
    assert_string_equal(models[26].features[25].name, "f25");
    assert_string_equal(models[26].features[25].model, "f25");
    int64_t sum = 0;
    for (size_t i = 0; i < 26; i++)
        sum += strtoll(strchr(models[i].path, '=') + 1, NULL, 10) * 512;
    assert_in_range(sum, (64 << 20) - 13 * 512, 64 << 20);
}

/* Three FP16 tables that are not pooled, and a collection of five features over them. */
TEST(test_synthetic_sequences)
{
    FLAGS(NULL, "--synthetic", "mlperf-dlrm-v3", "--synthetic-bytes", "64MiB");
    const struct bag_model_config *models = fixture->config.models;
    assert_int_equal(fixture->config.num_models, 4);
    assert_string_equal(models[0].path, "synthetic:item_id=32704x512");
    assert_string_equal(models[1].path, "synthetic:item_category_id=128x512");
    assert_string_equal(models[2].path, "synthetic:user_id=32704x512");
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(models[i].datatype, BAG_F16);
        assert_int_equal(models[i].rules.reduction, BAG_NONE);
    }
    assert_string_equal(models[3].name, "dlrm_v3");
    assert_int_equal(models[3].num_features, 5);
    assert_string_equal(models[3].features[3].name, "item_candidate_category_id");
    assert_string_equal(models[3].features[3].model, "item_category_id");
}

TEST(test_finds_the_configuration_file)
{
    char *none[] = {TEXT("HOME=/"), NULL};
    char *named[] = {TEXT("BAGSERVE_CONFIGS=x"), TEXT("BAGSERVE_CONFIG=variable.json"), NULL};
    char *empty[] = {TEXT("BAGSERVE_CONFIG="), NULL};
    char *flag[] = {TEXT("--port"), TEXT("80"), TEXT("--config"), TEXT("flag.json"),
                    TEXT("--demo")};
    char *joined[] = {TEXT("--unknown"), TEXT("--config=a.json"), TEXT("--config=b.json")};
    char *other[] = {TEXT("--host"), TEXT("config"), TEXT("--host=--config"), TEXT("--config")};
    assert_null(bag_config_find_path(0, NULL, none));
    assert_null(bag_config_find_path(0, NULL, empty));
    assert_string_equal(bag_config_find_path(0, NULL, named), "variable.json");
    assert_ptr_equal(bag_config_find_path(5, flag, named), flag[3]);
    assert_string_equal(bag_config_find_path(3, joined, named), "b.json");
    assert_null(bag_config_find_path(4, other, none));
}

/* ---- variables ------------------------------------------------------------------------------- */

TEST(test_variables)
{
    variable("BAGSERVE_PORT=81", NULL);
    assert_int_equal(fixture->config.options.port, 81);
    variable("BAGSERVE_CONFIG=c.json", NULL);
    assert_string_equal(fixture->config.config_path, "c.json");
    variable("BAGSERVE_MODELS=/models", NULL);
    assert_string_equal(fixture->config.models_dir, "/models");
    variable("BAGSERVER_PORT=x", NULL);
    variable("bagserve_port=x", NULL);
    assert_int_equal(fixture->config.options.port, 81);
    variable("BAGSERVE_PORT=", "BAGSERVE_PORT=: must be an integer from 0 to 65535");
    variable("BAGSERVE_PORT", "BAGSERVE_PORT=: must be an integer from 0 to 65535");
    variable("BAGSERVE_HOST=", "BAGSERVE_HOST=: must be a text of 1 to 255 bytes");
    variable("BAGSERVE_WORKERS=many",
             "BAGSERVE_WORKERS=many: must be an integer from 0 to 1024 threads");
    variable("BAGSERVE_PROT=1", "unknown variable BAGSERVE_PROT; did you mean BAGSERVE_PORT?");
    variable("BAGSERVE_=1", "unknown variable BAGSERVE_; did you mean BAGSERVE_CONFIG?");
    variable("BAGSERVE_TABLE=items=x",
             "unknown variable BAGSERVE_TABLE; 'bagserve serve --help-all' lists them");
    variable("BAGSERVE_port=1", "unknown variable BAGSERVE_port; did you mean BAGSERVE_PORT?");
}

/* Kubernetes injects these variables for Services named bagserve and bagserve-blue. */
TEST(test_variables_of_kubernetes)
{
    static const char *const injected[] = {
        "BAGSERVE_SERVICE_HOST=10.0.0.1",           "BAGSERVE_SERVICE_PORT=8000",
        "BAGSERVE_SERVICE_PORT_HTTP=8000",          "BAGSERVE_SERVICE_PORT_MY_METRICS=9000",
        "BAGSERVE_PORT=tcp://10.0.0.1:8000",        "BAGSERVE_PORT=udp://10.0.0.1:8000",
        "BAGSERVE_PORT=sctp://10.0.0.1:8000",       "BAGSERVE_PORT_8000_TCP=tcp://10.0.0.1:8000",
        "BAGSERVE_PORT_8000_TCP_PROTO=tcp",         "BAGSERVE_PORT_8000_TCP_PORT=8000",
        "BAGSERVE_PORT_8000_TCP_ADDR=10.0.0.1",     "BAGSERVE_PORT_53_UDP_ADDR=10.0.0.1",
        "BAGSERVE_PORT_1_SCTP=sctp://10.0.0.1:1",   "BAGSERVE_BLUE_SERVICE_HOST=10.0.0.2",
        "BAGSERVE_BLUE_SERVICE_PORT_HTTP=8000",     "BAGSERVE_BLUE_PORT=tcp://10.0.0.2:8000",
        "BAGSERVE_BLUE_PORT_8000_TCP_ADDR=10.0.0.2"};
    static const char *const others[] = {
        "BAGSERVE_SERVICE",      "BAGSERVE_PORT_TCP",       "BAGSERVE_PORT_8000",
        "BAGSERVE_PORT_80_TCPX", "BAGSERVE_PORT_X_TCP",     "BAGSERVE_BLUE_PORT",
        "BAGSERVE_PORTS_80_TCP", "BAGSERVE_PORT_8000_HTTP", "BAGSERVE_SERVICES_PORT_HTTP"};
    for (size_t i = 0; i < COUNT_OF(injected); i++)
        variable(injected[i], NULL);
    assert_int_equal(fixture->config.options.port, 8000);
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        /* A value may hold what would have excused a name. */
        char entry[80], unknown[80];
        char *environment[] = {entry, NULL};
        snprintf(entry, sizeof entry, "%s=1_SERVICE_PORT_8000_TCP", others[i]);
        snprintf(unknown, sizeof unknown, "unknown variable %s; ", others[i]);
        assert_false(
            bag_config_apply_environment(&fixture->config, environment, &fixture->problem));
        assert_memory_equal(fixture->problem.text, unknown, strlen(unknown));
    }
}
