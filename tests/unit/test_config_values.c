/* Every option of the table: its default, its bounds and one beyond them, from each source; the
 * order of the sources; sizes and integers as people write them. */
#include "config_fixture.h"

#include "config/config.h"
#include "proto/text.h"

#include <inttypes.h>

/* The member of an option, as a number. */
static int64_t number_of(const struct bag_option *option)
{
    const char *member = (const char *)&fixture->config + option->setting.offset;
    int64_t number;
    unsigned choice;
    if (option->setting.type == BAG_SETTING_CHOICE) {
        memcpy(&choice, member, sizeof choice);
        return choice;
    }
    memcpy(&number, member, sizeof number);
    return number;
}

static const char *text_of(const struct bag_option *option)
{
    const char *text;
    memcpy(&text, (const char *)&fixture->config + option->setting.offset, sizeof text);
    return text;
}

static bool is_number(const struct bag_option *option)
{
    return option->setting.type == BAG_SETTING_COUNT || option->setting.type == BAG_SETTING_BYTES;
}

/* Writes the message for a number beyond its bounds. */
static void range_text(const struct bag_option *option, char *text, size_t bytes)
{
    const struct bag_setting *setting = &option->setting;
    if (setting->type == BAG_SETTING_BYTES)
        snprintf(text, bytes, "must be from %s to %s", bag_size_text(setting->minimum).text,
                 bag_size_text(setting->maximum).text);
    else
        snprintf(text, bytes, "must be from %" PRId64 " to %" PRId64 "%s%s", setting->minimum,
                 setting->maximum, *setting->unit ? " " : "", setting->unit);
}

/* Gives one value to one option through each of the three sources, by its key or its alias.
 * `rejected` is the reason, or NULL where the value must be taken. */
static void through_all_as(const struct bag_option *option, const char *key, int64_t value,
                           const char *rejected)
{
    char flag[128], entry[128], document[128], expected[256];
    snprintf(flag, sizeof flag, "%" PRId64, value);
    snprintf(expected, sizeof expected, "%s %s: %s", bag_flag_of(key).text, flag,
             rejected ? rejected : "");
    FLAGS(rejected ? expected : NULL, bag_flag_of(key).text, flag);
    if (!rejected)
        assert_int_equal(number_of(option), value);

    snprintf(entry, sizeof entry, "%s=%" PRId64, bag_variable_of(key).text, value);
    snprintf(expected, sizeof expected, "%s: %s", entry, rejected ? rejected : "");
    variable(entry, rejected ? expected : NULL);

    snprintf(document, sizeof document, "{'%s': {'%s': %" PRId64 "}}", option->section, key, value);
    snprintf(expected, sizeof expected, "bagserve.json: line 1, column %zu: %s %s in '%s': %s",
             strlen(option->section) + 7, key, flag, option->section, rejected ? rejected : "");
    file(document, rejected ? expected : NULL);
}

static void through_all(const struct bag_option *option, int64_t value, const char *rejected)
{
    through_all_as(option, option->setting.key, value, rejected);
    if (bag_option_alias(option))
        through_all_as(option, bag_option_alias(option), value, rejected);
}

TEST(test_numbers_at_and_beyond_their_bounds)
{
    char range[128];
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_option *option = &bag_options[i];
        if (!is_number(option))
            continue;
        range_text(option, range, sizeof range);
        through_all(option, option->setting.minimum, NULL);
        through_all(option, option->setting.maximum, NULL);
        through_all(option, option->setting.minimum - 1, range);
        through_all(option, option->setting.maximum + 1, range);
        /* The rejected value did not change the member. */
        assert_int_equal(number_of(option), option->setting.maximum);
    }
}

TEST(test_seconds_have_three_decimals)
{
    static const char range[] = "must be from 0.1 to 86400 seconds, with up to three decimals";
    static const char *const wrong[] = {"0.099", "86400.001", "1.", "1.0001",
                                        ".5",    "1e2",       "x",  "-1"};
    static const struct {
        const char *text;
        int64_t ms;
    } right[] = {{"0.1", 100}, {"15", 15000}, {"0.25", 250}, {"2.007", 2007}, {"86400", 86400000}};
    char expected[256], document[128];
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        FLAGS(NULL, "--poll-seconds", right[i].text);
        assert_int_equal(fixture->config.options.poll_ms, right[i].ms);
        fixture->config.options.poll_ms = 1;
        snprintf(document, sizeof document, "{'loading': {'poll_seconds': %s}}", right[i].text);
        file(document, NULL);
        assert_int_equal(fixture->config.options.poll_ms, right[i].ms);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(expected, sizeof expected, "--poll-seconds %s: %s", wrong[i], range);
        FLAGS(expected, "--poll-seconds", wrong[i]);
    }
}

TEST(test_texts_at_and_beyond_their_bounds)
{
    char text[4200], shown[80];
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_option *option = &bag_options[i];
        struct bag_spelling flag = bag_flag_of(option->setting.key);
        char expected[256];
        if (option->setting.type != BAG_SETTING_TEXT)
            continue;
        FLAGS(NULL, flag.text, "x");
        assert_string_equal(text_of(option), "x");
        memset(text, 'a', sizeof text);
        text[option->setting.maximum] = '\0';
        FLAGS(NULL, flag.text, text);
        assert_string_equal(text_of(option), text);

        snprintf(expected, sizeof expected, "%s '': must be a text of 1 to %" PRId64 " bytes",
                 flag.text, option->setting.maximum);
        FLAGS(expected, flag.text, "");
        text[option->setting.maximum] = 'a';
        text[option->setting.maximum + 1] = '\0';
        snprintf(shown, sizeof shown, "%.64s%s", text, strlen(text) > 64 ? "..." : "");
        snprintf(expected, sizeof expected, "%s %s: must be a text of 1 to %" PRId64 " bytes",
                 flag.text, shown, option->setting.maximum);
        FLAGS(expected, flag.text, text);
    }
}

/* Triton's names; each is of an option that there is, and of one only. */
TEST(test_aliases)
{
    size_t found = 0;
#define BAG_X(name, key) \
    found++;             \
    assert_string_equal( \
        bag_option_alias(bag_option_find((struct bag_text){key, strlen(key)}, bag_key_of)), name);
    BAG_OPTION_ALIASES(BAG_X)
#undef BAG_X
    assert_int_equal(found, 2);
    FLAGS(NULL, "--default-timeout-microseconds", "7");
    assert_int_equal(fixture->config.options.default_timeout_us, 7);
    file("{'engine': {'inline_work_microseconds': 9}}", NULL);
    assert_int_equal(fixture->config.options.inline_work_us, 9);
    file("{'http': {'inline_work_microseconds': 9}}",
         "bagserve.json: line 1, column 11: unknown key 'inline_work_microseconds' in 'http'");
}

TEST(test_every_word)
{
    static const char *const formats[] = {"text", "json"};
    static const char *const levels[] = {"error", "warning", "info", "debug"};
    for (unsigned i = 0; i < COUNT_OF(formats); i++) {
        FLAGS(NULL, "--log-format", formats[i]);
        assert_int_equal(fixture->config.options.log_format, i);
    }
    for (unsigned i = 0; i < COUNT_OF(levels); i++) {
        FLAGS(NULL, "--log-level", levels[i]);
        assert_int_equal(fixture->config.options.log_level, i);
    }
    FLAGS("--log-level INFO: must be one of error, warning, info, debug", "--log-level", "INFO");
    FLAGS("--log-format textjson: must be one of text, json", "--log-format", "textjson");
    variable("BAGSERVE_LOG_LEVEL=loud",
             "BAGSERVE_LOG_LEVEL=loud: must be one of error, warning, info, debug");
    file("{'log': {\n  'log_format': 'xml'}}",
         "bagserve.json: line 2, column 3: log_format \"xml\" in 'log': must be one of text, json");
}

TEST(test_defaults)
{
    const struct bag_config *config = &fixture->config;
    assert_string_equal(config->options.host, "127.0.0.1");
    assert_int_equal(config->options.port, 8000);
    assert_int_equal(config->options.max_body_bytes, 67108864);
    assert_int_equal(config->options.max_reply_bytes, 320 << 20);
    assert_int_equal(config->options.log_format, BAG_LOG_FORMAT_TEXT);
    assert_int_equal(config->options.log_level, BAG_LOG_LEVEL_INFO);
    assert_null(config->config_path);
    assert_null(config->models_dir);
    assert_int_equal(config->num_models, 0);
    assert_false(config->demo);
    assert_false(config->check);
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_option *option = &bag_options[i];
        if (!is_number(option))
            continue;
        assert_non_null(option->default_text);
        /* A JSON number is exact up to there. */
        assert_true(option->setting.maximum < INT64_C(1) << 53);
    }
}

TEST(test_later_sources_override)
{
    file("{'http': {'host': 'file', 'port': 1}, 'engine': {'workers': 1}, 'models_dir': 'file'}",
         NULL);
    assert_string_equal(fixture->config.options.host, "file");
    assert_int_equal(fixture->config.options.port, 1);
    assert_string_equal(fixture->config.models_dir, "file");
    variable("BAGSERVE_PORT=2", NULL);
    variable("BAGSERVE_HOST=variable", NULL);
    variable("BAGSERVE_MODELS=variable", NULL);
    FLAGS(NULL, "--port", "3", "--models=flag");
    assert_string_equal(fixture->config.options.host, "variable");
    assert_int_equal(fixture->config.options.port, 3);
    assert_int_equal(fixture->config.options.workers, 1);
    assert_string_equal(fixture->config.models_dir, "flag");
    FLAGS(NULL, "--port", "4", "--port", "5");
    assert_int_equal(fixture->config.options.port, 5);
}

TEST(test_integers)
{
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } cases[] = {{"0", true, 0},
                 {"-0", true, 0},
                 {"7", true, 7},
                 {"-12", true, -12},
                 {"9223372036854775807", true, INT64_MAX},
                 {"9223372036854775808", true, INT64_MAX},
                 {"-9223372036854775808", true, INT64_MIN},
                 {"-9223372036854775809", true, INT64_MIN},
                 {"99999999999999999999999999999999999999999999", true, INT64_MAX},
                 {"-36893488147419103232", true, INT64_MIN},
                 {"", false, 0},
                 {"-", false, 0},
                 {"+1", false, 0},
                 {"01", false, 0},
                 {"-01", false, 0},
                 {" 1", false, 0},
                 {"1 ", false, 0},
                 {"1.0", false, 0},
                 {"1e3", false, 0},
                 {"0x10", false, 0},
                 {"1,000", false, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t value = 0;
        if (bag_integer_parse(cases[i].text, &value) != cases[i].ok)
            fail_msg("'%s' must%s be an integer", cases[i].text, cases[i].ok ? "" : " not");
        if (cases[i].ok)
            assert_int_equal(value, cases[i].value);
    }
}

TEST(test_sizes)
{
    static const struct {
        const char *text;
        int64_t value; /* -1: rejected */
    } cases[] = {{"0", 0},
                 {"1", 1},
                 {"1KiB", 1024},
                 {"1KB", 1000},
                 {"64MiB", 67108864},
                 {"64 MiB", 67108864},
                 {"3MB", 3000000},
                 {"1GiB", 1073741824},
                 {"2GB", 2000000000},
                 {"8589934591GiB", INT64_C(8589934591) << 30},
                 {"8589934592GiB", INT64_MAX},
                 {"99999999999999999999KB", INT64_MAX},
                 {"", -1},
                 {"MiB", -1},
                 {"1mib", -1},
                 {"1M", -1},
                 {"1B", -1},
                 {"1TiB", -1},
                 {"1  KiB", -1},
                 {"1KiB ", -1},
                 {"1.5GiB", -1},
                 {"01KiB", -1},
                 {"1 ", -1}};
    int64_t value;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        value = -1;
        if (bag_size_parse(cases[i].text, &value) != (cases[i].value >= 0))
            fail_msg("'%s' must%s be a size", cases[i].text, cases[i].value >= 0 ? "" : " not");
        if (cases[i].value >= 0)
            assert_int_equal(value, cases[i].value);
    }
    assert_true(bag_size_parse("-9007199254740993KiB", &value));
    assert_int_equal(value, INT64_MIN);
}

TEST(test_sizes_as_text)
{
    assert_string_equal(bag_size_text(0).text, "0 bytes");
    assert_string_equal(bag_size_text(1).text, "1 byte");
    assert_string_equal(bag_size_text(1000).text, "1000 bytes");
    assert_string_equal(bag_size_text(1023).text, "1023 bytes");
    assert_string_equal(bag_size_text(1024).text, "1 KiB");
    assert_string_equal(bag_size_text(1536).text, "1536 bytes");
    assert_string_equal(bag_size_text(64 << 20).text, "64 MiB");
    assert_string_equal(bag_size_text(INT64_C(3) << 30).text, "3 GiB");
}

TEST(test_sizes_from_each_source)
{
    FLAGS(NULL, "--max-body-bytes", "2MiB");
    assert_int_equal(fixture->config.options.max_body_bytes, 2097152);
    variable("BAGSERVE_MAX_BODY_BYTES=500KB", NULL);
    assert_int_equal(fixture->config.options.max_body_bytes, 500000);
    file("{'http': {'max_body_bytes': '1GiB'}}", NULL);
    assert_int_equal(fixture->config.options.max_body_bytes, 1073741824);
    file("{'http': {'max_body_bytes': 68719476736}}", NULL);
    assert_int_equal(fixture->config.options.max_body_bytes, INT64_C(68719476736));
    FLAGS("--max-body-bytes 65GiB: must be from 1 byte to 64 GiB", "--max-body-bytes", "65GiB");
    FLAGS("--max-body-bytes 64M: must be a size from 1 byte to 64 GiB, such as 1048576, 64MiB or "
          "500KB",
          "--max-body-bytes", "64M");
    file("{'http': {'max_body_bytes': '1 000'}}",
         "bagserve.json: line 1, column 11: max_body_bytes \"1 000\" in 'http': must be a size "
         "from 1 byte to 64 GiB, such as 1048576, 64MiB or 500KB");
}

TEST(test_nothing_to_serve)
{
    expect(bag_config_validate(&fixture->config, &fixture->problem),
           "there is nothing to serve: name tables with --table NAME=PATH, a folder with --models "
           "DIR or a file with --config FILE, or try --demo");
    fixture->config.demo = true;
    expect(bag_config_validate(&fixture->config, &fixture->problem), NULL);
    fixture->config.demo = false;
    FLAGS(NULL, "--models", "models");
    expect(bag_config_validate(&fixture->config, &fixture->problem), NULL);
    reset();
    FLAGS(NULL, "--table", "items=items.npy");
    expect(bag_config_validate(&fixture->config, &fixture->problem), NULL);
}
