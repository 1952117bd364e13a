/* Models: names, versions, doubles, every key, and the config.json of a model's own folder. */
#include "config_fixture.h"

#include "config/json.h"
#include "config/model_options.h"

#define AT(line, column) "bagserve.json: line " #line ", column " #column ": "

/* Applies one entry of "models" with a name and a path and these further keys. */
static void entry(const char *keys, const char *expected)
{
    char text[512], full[512];
    reset();
    snprintf(text, sizeof text, "{'models': [\n{'name': 'items', 'path': 'x',\n%s}]}", keys);
    snprintf(full, sizeof full, "bagserve.json: line 3, column 1: %s", expected ? expected : "");
    file(text, expected ? full : NULL);
}

/* Returns the model of an entry that is taken. */
static const struct bag_model_config *entry_of(const char *keys)
{
    entry(keys, NULL);
    return &fixture->config.models[0];
}

static bool name_taken(const char *name)
{
    return bag_config_add_model(&fixture->config, name, "x", "1", &fixture->problem);
}

TEST(test_names)
{
    static const char *const ok[] = {"a", "Z9", "a.b", "_", "-", "a.", "items-v2_x.y"};
    static const char *const bad[] = {"",    ".",    ".a",   "..",       "a/b", "a b",  "a\n",
                                      "a\t", "\x7f", "\x01", "\xc3\xa9", "a=b", "a%2f", "a:b"};
    char name[130];
    for (size_t i = 0; i < COUNT_OF(ok); i++)
        assert_true(name_taken(ok[i]));
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        if (bag_model_name_valid(bad[i]) || name_taken(bad[i]))
            fail_msg("'%s' was taken", bad[i]);
    }
    memset(name, 'n', sizeof name);
    name[128] = '\0';
    assert_true(bag_model_name_valid(name));
    assert_true(name_taken(name));
    name[128] = 'n';
    name[129] = '\0';
    assert_false(bag_model_name_valid(name));
    assert_false(name_taken(name));
    assert_int_equal(fixture->config.num_models, COUNT_OF(ok) + 1);
    assert_false(name_taken("a\x1b[0m/\xff"));
    assert_string_equal(fixture->problem.text,
                        "model name 'a\\x1b[0m/\\xff' must be 1 to 128 of A-Z a-z 0-9 . _ - with "
                        "no dot in front");
}

TEST(test_versions)
{
    static const char *const bad[] = {"", "0", "-1", "01", "1.0", "v1", " 1", "9007199254740992"};
    struct bag_config *config = &fixture->config;
    struct bag_problem *problem = &fixture->problem;
    assert_true(bag_config_add_model(config, "a", "x", "1", problem));
    assert_true(bag_config_add_model(config, "a", "x", "2", problem));
    assert_true(bag_config_add_model(config, "a", "x", "9007199254740991", problem));
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        if (bag_config_add_model(config, "b", "x", bad[i], problem))
            fail_msg("version '%s' was taken", bad[i]);
    }
    expect(bag_config_add_model(config, "b", "x", "v1", problem),
           "model 'b': version 'v1' must be a whole number from 1 to 9007199254740991");
    assert_int_equal(config->num_models, 3);
    assert_string_equal(entry_of("'version': 7")->version, "7");
    assert_string_equal(entry_of("'version': '12'")->version, "12");
    entry("'version': true", "version in model 'items' must be a whole number from 1");
    file("{'models': [{'name': 'b', 'path': 'x', 'version': 1.5}]}",
         AT(1, 13) "model 'b': version '1.5' must be a whole number from 1 to 9007199254740991");
}

TEST(test_doubles)
{
    file("{'models': [{'name': 'a', 'path': 'one.npy'}, {'name': 'a', 'path': 'two.npy', "
         "'version': 2},\n{'name': 'a', 'path': 'three.npy'}]}",
         AT(2, 1) "model 'a' version 1 is named twice: 'one.npy' and 'three.npy'");
    FLAGS("--table a=four.npy: model 'a' version 1 is named twice: 'one.npy' and 'four.npy'",
          "--table", "a=four.npy");
    assert_int_equal(fixture->config.num_models, 2);
}

/* Names by thousands are found by their hash: places, highest versions, and the one that is there
 * twice. */
TEST(test_many_names)
{
    enum { COUNT = 20000 };
    struct bag_config *config = &fixture->config;
    size_t room = COUNT * 64, used = 0;
    char *text = malloc(room), name[16];
    assert_non_null(text);
    used += (size_t)snprintf(text, room, "{'models': [");
    for (int i = 0; i < COUNT; i++)
        used += (size_t)snprintf(text + used, room - used,
                                 "{'name': 'm%d', 'path': '%d.npy', 'version': %d},\n", i / 2, i,
                                 i % 2 ? i : i + 2);
    snprintf(text + used, room - used, "{'name': 'm7', 'path': 'twice.npy', 'version': 15}]}");
    file(text, AT(20001, 1) "model 'm7' version 15 is named twice: '15.npy' and 'twice.npy'");
    free(text);
    assert_int_equal(config->num_models, COUNT);
    for (int i = 0; i < COUNT; i++) {
        const struct bag_model_config *model = &config->models[i];
        snprintf(name, sizeof name, "m%d", i / 2);
        assert_int_equal(bag_config_find_version(config, model->name, model->version), i);
        assert_ptr_equal(bag_config_find_model(config, name), &config->models[i - i % 2]);
    }
    assert_int_equal(bag_config_find_version(config, "m7", "17"), COUNT);
    assert_null(bag_config_find_model(config, "m10000"));
}

TEST(test_missing_keys)
{
    static const char *const cases[][2] = {
        {"{}", AT(1, 13) "key 'name' is missing in models[0]"},
        {"{'path': 'x'}", AT(1, 13) "key 'name' is missing in models[0]"},
        {"{'name': 'items'}", AT(1, 13) "key 'path' is missing in model 'items'"},
        {"{'name': 1}", AT(1, 14) "name in models[0] must be a text that is not empty"},
        {"{'name': 'a', 'path': ''}",
         AT(1, 27) "path in model 'a' must be a text that is not empty"},
        {"{'nmae': 'a', 'path': 'x'}",
         AT(1, 14) "unknown key 'nmae' in models[0]; did you mean 'name'?"},
        {"{'name': 'a/b', 'path': 'x'}",
         AT(1, 13) "model name 'a/b' must be 1 to 128 of A-Z a-z 0-9 . _ - with no dot in front"}};
    char text[256];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        snprintf(text, sizeof text, "{'models': [%s]}", cases[i][0]);
        file(text, cases[i][1]);
    }
}

TEST(test_defaults_of_a_model)
{
    assert_true(name_taken("a"));
    const struct bag_model_config *model = &fixture->config.models[0];
    assert_string_equal(model->version, "1");
    assert_int_equal(model->datatype, BAG_DTYPE_COUNT);
    assert_int_equal(model->output_datatype, BAG_DTYPE_COUNT);
    assert_int_equal(model->rules.reduction, BAG_SUM);
    assert_int_equal(model->rules.default_index, -1);
    assert_false(model->rules.has_padding_idx);
#define BAG_NOT_SET_BOOL(member)                assert_false(model->member);
#define BAG_NOT_SET_CHOICE_OUT_OF_RANGE(member) assert_int_equal(model->member, BAG_MISSING_COUNT);
#define BAG_NOT_SET_CHOICE_MISSING(member)      assert_int_equal(model->member, BAG_MISSING_COUNT);
#define BAG_NOT_SET_KEY(member)
#define BAG_NOT_SET_SHAPE(member) assert_int_equal(model->member.rank, 0);
#define BAG_NOT_SET_PART(member)  assert_int_equal(model->member.of, 0);
#define BAG_NOT_SET_COUNT(member)
#define BAG_NOT_SET_FILE(member) assert_null(model->member);
#define BAG_NOT_SET_TEXT(member) assert_null(model->member);
#define BAG_NOT_SET_CHOICE_DTYPE(member)
#define BAG_NOT_SET_CHOICE_RELOAD(member)      assert_int_equal(model->member, BAG_RELOAD_LOAD_FIRST);
#define BAG_NOT_SET_CHOICE_SHARD_READY(member) assert_int_equal(model->member, BAG_SHARD_READY_ALL);
#define BAG_NOT_SET_CHOICE_SHARD_ABSENT(member) \
    assert_int_equal(model->member, BAG_SHARD_ABSENT_ERROR);
#define BAG_NOT_SET_CHOICE_SHARD_HEDGE(member) assert_int_equal(model->member, BAG_SHARD_HEDGE_OFF);
#define BAG_NOT_SET_POLICY(member)             assert_int_equal(model->member.count, 0);
#define BAG_NOT_SET_CHOICE_REDUCTION(member)
#define BAG_NOT_SET_CHOICE_LOAD(member)       assert_int_equal(model->member, BAG_LOAD_COUNT);
#define BAG_NOT_SET_CHOICE_ROW_FORMAT(member) assert_int_equal(model->member, BAG_ROWS_PLAIN);
#define BAG_NOT_SET_CHOICE_FORM(member)       assert_int_equal(model->member, BAG_FORM_OFFSETS);
#define BAG_NOT_SET_CHOICE_OPTIONAL_INPUTS(member) \
    assert_int_equal(model->member, BAG_V2_OPTIONAL_ALL);
#define BAG_X(member, key, TYPE, ...) BAG_NOT_SET_##TYPE(member)
    BAG_MODEL_KEYS(BAG_X)
#undef BAG_X
}

/* Each switch sets its own member and leaves the others. */
TEST(test_switches)
{
    for (size_t i = 0; i < 3 * bag_model_keys.num_settings; i++) {
        const struct bag_setting *setting = &bag_model_keys.settings[i / 3];
        const char *value = (const char *const[]){"true", "false", "'true'"}[i % 3];
        char keys[128], rejection[128];
        if (setting->type != BAG_SETTING_BOOL)
            continue;
        snprintf(keys, sizeof keys, "'%s': %s", setting->key, value);
        snprintf(rejection, sizeof rejection, "%s \"true\" in model 'items': must be true or false",
                 setting->key);
        entry(keys, i % 3 == 2 ? rejection : NULL);
        for (size_t j = 0; i % 3 < 2 && j < bag_model_keys.num_settings; j++) {
            const struct bag_setting *other = &bag_model_keys.settings[j];
            const char *model = (const char *)&fixture->config.models[0];
            if (other->type == BAG_SETTING_BOOL)
                assert_int_equal(*(const bool *)(const void *)(model + other->offset),
                                 i % 3 == 0 && other == setting);
        }
    }
}

TEST(test_words_of_keys)
{
    assert_int_equal(entry_of("'load': 'map'")->load, BAG_LOAD_MAP);
    entry("'load': 'mmap'", "load \"mmap\" in model 'items': must be one of copy, map");
    assert_int_equal(entry_of("'out_of_range': 'skip'")->out_of_range, BAG_MISSING_SKIP);
    assert_int_equal(entry_of("'out_of_range': 'error'")->out_of_range, BAG_MISSING_ERROR);
    entry("'out_of_range': 'clip'",
          "out_of_range \"clip\" in model 'items': must be one of error, skip, default");
    entry("'out_of_range': true",
          "out_of_range true in model 'items': must be one of error, skip, default");
}

TEST(test_words)
{
    static const char types[] = "UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, "
                                "BF16, FP32, FP64";
    char rejection[256];
    assert_int_equal(entry_of("'row_format': 'int4'")->row_format, BAG_ROWS_INT4);
    assert_int_equal(fixture->config.models[0].row_elements, 0);
    assert_int_equal(entry_of("'row_format': 'f8_e5m2_scaled', 'row_elements': 65")->row_format,
                     BAG_ROWS_F8_E5M2_SCALED);
    assert_int_equal(fixture->config.models[0].row_elements, 65);
    assert_int_equal(entry_of("'datatype': 'BF16', 'output_datatype': 'FP32'")->datatype, BAG_BF16);
    assert_int_equal(fixture->config.models[0].output_datatype, BAG_F32);
    static const char *const bad[] = {"BOOL", "BYTES", "fp32", "F32", ""};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char keys[64];
        snprintf(keys, sizeof keys, "'datatype': '%s'", bad[i]);
        snprintf(rejection, sizeof rejection, "datatype \"%s\" in model 'items': must be one of %s",
                 bad[i], types);
        entry(keys, rejection);
    }
#define BAG_X(id, name)                     \
    entry("'reduction': '" name "'", NULL); \
    assert_int_equal(fixture->config.models[0].rules.reduction, BAG_##id);
    BAG_REDUCTIONS(BAG_X)
#undef BAG_X
    entry("'reduction': 'avg'",
          "reduction \"avg\" in model 'items': must be one of sum, mean, max, sqrtn, none");
}

#define NO_KEY                                                                                \
    "must be an integer of 64 bits: a number from -2^53 + 1 to 2^53 - 1, or a text, such as " \
    "\"18446744073709551615\""

/* Tests the shapes of files without a header and the files of their keys. */
TEST(test_sources)
{
    static const char *const bad[][2] = {
        {"[]", "[]"},       {"[-2]", "[-2]"},   {"[1, -1]", "[1,-1]"},
        {"[1.5]", "[1.5]"}, {"['1']", "[...]"}, {"[[1]]", "[...]"},
        {"3", "3"}};
    char keys[128], rejection[256];
    entry("'shape': [-1, 64], 'keys': 'k.npy', 'tensor': 'v'", NULL);
    const struct bag_model_config *model = &fixture->config.models[0];
    assert_int_equal(model->shape.rank, 2);
    assert_int_equal(model->shape.sizes[0], -1);
    assert_int_equal(model->shape.sizes[1], 64);
    assert_string_equal(model->tensor, "v");
    assert_string_equal(model->keys, "k.npy");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        snprintf(keys, sizeof keys, "'shape': %s", bad[i][0]);
        snprintf(rejection, sizeof rejection,
                 "shape %s in model 'items': must be an array of 1 to 32 whole numbers, such as "
                 "[-1, 64]: only the first may be -1, for any",
                 bad[i][1]);
        entry(keys, rejection);
    }
}

TEST(test_parts)
{
    /* The part, and how the message shows it. */
    static const char *const bad[][2] = {
        {"{'by': 'rows', 'index': 3, 'of': 3}", "rows 3 of 3"},
        {"{'by': 'rows', 'index': 0, 'of': 0}", "rows 0 of 0"},
        {"{'by': 'rows', 'index': 0, 'of': 4097}", "rows 0 of 4097"},
        {"{'by': 'rows', 'index': -1, 'of': 3}", "rows -1 of 3"},
        {"{'by': 'rows', 'index': 0.5, 'of': 3}", "rows 0.5 of 3"},
        {"{'by': 'rows', 'index': 1e300, 'of': 1e300}", "rows 1e+300 of 1e+300"},
        {"{'by': 'rows', 'index': '0', 'of': 3}", "{...}"},
        {"{'by': 'row', 'index': 0, 'of': 3}", "{...}"},
        {"{'by': 'rows ', 'index': 0, 'of': 3}", "{...}"},
        {"{'by': 1, 'index': 0, 'of': 3}", "{...}"},
        {"{'by': 'rows', 'of': 3}", "{...}"},
        {"{'by': 'rows', 'index': 0, 'of': 3, 'at': 1}", "{...}"},
        {"{}", "{...}"},
        {"'rows 0 of 3'", "\"rows 0 of 3\""},
        {"[0, 3]", "[0,3]"}};
    char keys[160], rejection[320];
    assert_int_equal(entry_of("'part': {'by': 'keys', 'index': 4095, 'of': 4096}")->part.by,
                     BAG_PART_KEYS);
    assert_int_equal(fixture->config.models[0].part.index, 4095);
    assert_int_equal(fixture->config.models[0].part.of, 4096);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        snprintf(keys, sizeof keys, "'part': %s", bad[i][0]);
        snprintf(rejection, sizeof rejection,
                 "part %s in model 'items': must be {\"by\": WAY, \"index\": I, \"of\": N} and "
                 "nothing else, WAY rows, columns or keys, N from 1 to 4096, I from 0 to N - 1; as "
                 "a text rows 0 of 3",
                 bad[i][1]);
        entry(keys, rejection);
    }
    reset();
    FLAGS(NULL, "--table", "a=x.npy,part=columns 1 of 2");
    assert_int_equal(fixture->config.models[0].part.by, BAG_PART_COLUMNS);
    assert_int_equal(fixture->config.models[0].part.index, 1);
    assert_int_equal(fixture->config.models[0].part.of, 2);
    uint64_t hash = bag_model_config_hash_files(&fixture->config.models[0], true);
    fixture->config.models[0].part.index = 0;
    assert_true(hash != bag_model_config_hash_files(&fixture->config.models[0], true));
}

/* --table NAME=PATH#TENSOR,key=value */
TEST(test_keys_of_a_flag)
{
    static const struct {
        const char *flag, *path, *tensor;
    } cases[] = {{"a=x.npy", "x.npy", NULL},
                 {"a=x.safetensors#t", "x.safetensors", "t"},
                 {"a=x.npz#t#u", "x.npz", "t#u"},
                 {"a=d.x/m.safetensors.index.json#t", "d.x/m.safetensors.index.json", "t"},
                 {"a=d.x/parts#t", "d.x/parts", "t"},
                 {"a=odd#name.npy", "odd", "name.npy"},
                 {"a=odd.b#name.npy", "odd.b#name.npy", NULL},
                 {"a=x,y.npy", "x,y.npy", NULL},
                 {"a=x.safetensors#a,b", "x.safetensors", "a,b"},
                 {"a=x.safetensors#t,missing=skip,padding_idx=-3", "x.safetensors", "t"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        bag_config_free(&fixture->config);
        bag_config_init(&fixture->config);
        FLAGS(NULL, "--table", cases[i].flag);
        const struct bag_model_config *model = &fixture->config.models[0];
        assert_string_equal(model->path, cases[i].path);
        if (cases[i].tensor)
            assert_string_equal(model->tensor, cases[i].tensor);
        else
            assert_null(model->tensor);
    }
    assert_int_equal(fixture->config.models[0].missing, BAG_MISSING_SKIP);
    assert_int_equal(fixture->config.models[0].rules.padding_idx, -3);
    assert_true(fixture->config.models[0].rules.has_padding_idx);
    FLAGS("--table b=x.npy,mising=skip: unknown key 'mising'; did you mean 'missing'?", "--table",
          "b=x.npy,mising=skip");
    FLAGS("--table c=x.npy,missing=never: missing never: must be one of error, skip, default, hash",
          "--table", "c=x.npy,missing=never");
}

TEST(test_indices)
{
    assert_int_equal(entry_of("'default_index': 0")->rules.default_index, 0);
    assert_false(fixture->config.models[0].rules.has_padding_idx);
    assert_int_equal(entry_of("'default_index': 9007199254740991")->rules.default_index,
                     INT64_C(9007199254740991));
    assert_true(entry_of("'default_index': -2")->rules.has_default_index);
    assert_int_equal(entry_of("'default_index': '18446744073709551615'")->rules.default_index, -1);
    assert_true(fixture->config.models[0].rules.has_default_index);
    assert_false(entry_of("'default_index': null")->rules.has_default_index);
    assert_int_equal(fixture->config.models[0].rules.default_index, -1);
    entry("'default_index': 9007199254740992",
          "default_index 9007199254740992 in model 'items': " NO_KEY);
    entry("'default_index': 0.5", "default_index 0.5 in model 'items': " NO_KEY);
    entry("'default_index': '18446744073709551616'",
          "default_index \"18446744073709551616\" in model 'items': " NO_KEY);
    entry("'default_index': '-9223372036854775809'",
          "default_index \"-9223372036854775809\" in model 'items': " NO_KEY);
    assert_int_equal(entry_of("'default_index': 1000000000000000")->rules.default_index,
                     INT64_C(1000000000000000));
    assert_true(entry_of("'padding_idx': 0")->rules.has_padding_idx);
    assert_int_equal(entry_of("'padding_idx': -9007199254740991")->rules.padding_idx,
                     INT64_C(-9007199254740991));
    entry("'padding_idx': -9007199254740992",
          "padding_idx -9007199254740992 in model 'items': " NO_KEY);
    assert_int_equal(entry_of("'padding_idx': '-9223372036854775808'")->rules.padding_idx,
                     INT64_MIN);
    entry("'padding_idx': 123456789012345.5",
          "padding_idx 123456789012345.5 in model 'items': " NO_KEY);
    entry("'reductoin': 'sum'",
          "unknown key 'reductoin' in model 'items'; did you mean 'reduction'?");
}

static void model_file(const char *text, const char *expected)
{
    char *copy = quoted_copy(text, strlen(text));
    bool applied = bag_config_apply_model_file(&fixture->config, 1, "m/items/1/config.json", copy,
                                               strlen(text), false, &fixture->problem);
    free(copy);
    expect(applied, expected);
}

TEST(test_config_of_a_folder)
{
    assert_true(name_taken("other"));
    assert_true(name_taken("items"));
    model_file("{}", NULL);
    model_file("{'reduction': 'max', 'padding_idx': -1}", NULL);
    assert_int_equal(fixture->config.models[1].rules.reduction, BAG_MAX);
    assert_true(fixture->config.models[1].rules.has_padding_idx);
    assert_int_equal(fixture->config.models[1].rules.padding_idx, -1);
    assert_int_equal(fixture->config.models[0].rules.reduction, BAG_SUM);
    model_file("{'name': 'x'}",
               "m/items/1/config.json: line 1, column 2: key 'name' in model 'items' does not "
               "belong here: the folder says it");
    model_file("{'version': 2}",
               "m/items/1/config.json: line 1, column 2: key 'version' in model 'items' does not "
               "belong here: the folder says it");
    model_file("{'shards': ['http://a']}",
               "m/items/1/config.json: line 1, column 2: key 'shards' in model 'items' does not "
               "belong here: a model of shards has no folder; list it in 'models' of a "
               "configuration file");
    model_file("{'nam': 1}",
               "m/items/1/config.json: line 1, column 2: unknown key 'nam' in model 'items'; did "
               "you mean 'warm'?");
    model_file("{'reduction': 'min'}",
               "m/items/1/config.json: line 1, column 2: reduction \"min\" in model 'items': must "
               "be one of sum, mean, max, sqrtn, none");
    model_file("[]",
               "m/items/1/config.json: line 1, column 1: the configuration must be an object: "
               "{...}");
}

TEST(test_kinds_of_paths)
{
    static struct {
        char path[24];
        enum bag_path_kind kind;
    } cases[] = {{"", BAG_PATH_FILE},
                 {"demo", BAG_PATH_FILE},
                 {"./demo:items", BAG_PATH_FILE},
                 {"demo:items", BAG_PATH_DEMO},
                 {"synthetic:a=1x1", BAG_PATH_SYNTHETIC},
                 {"shards:http://a:1", BAG_PATH_SHARDS},
                 {"Shards:http://a:1", BAG_PATH_FILE}};
    struct bag_model_config model = {.path = NULL};
    assert_int_equal(bag_model_path_kind(&model), BAG_PATH_NONE);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        model.path = cases[i].path;
        assert_int_equal(bag_model_path_kind(&model), cases[i].kind);
        assert_int_equal(bag_model_has_shards(&model), cases[i].kind == BAG_PATH_SHARDS);
    }
}
