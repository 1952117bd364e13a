/* Tests the texts that are made from the tables of options: --help, suggestions, and the examples'
 * README. */
#include "config_fixture.h"

#include "config/config.h"
#include "config/model_options.h"
#include "proto/text.h"

/* The whole stream's text; the caller frees it. */
static char *read_all(FILE *stream)
{
    size_t room = 1 << 16;
    char *text = malloc(room);
    assert_non_null(text);
    size_t bytes = fread(text, 1, room - 1, stream);
    assert_true(bytes < room - 1);
    text[bytes] = '\0';
    fclose(stream);
    return text;
}

static char *help_text(bool all)
{
    FILE *stream = tmpfile();
    assert_non_null(stream);
    bag_config_print_help(stream, all);
    rewind(stream);
    return read_all(stream);
}

/* A file of config/examples. */
static char *example_text(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, BAG_SOURCE_DIR "/config/examples/%s", name);
    FILE *stream = fopen(path, "r");
    if (!stream)
        fail_msg("cannot open %s", path);
    return read_all(stream);
}

static int times(const char *text, const char *words)
{
    int found = 0;
    for (; (text = strstr(text, words)); text++)
        found++;
    return found;
}

/* Lines "  --flag ..." whose flag is that one. */
static void expect_entry(const char *help, const char *name, const char *sentence)
{
    char with_value[80], alone[80];
    char first_words[24];
    snprintf(with_value, sizeof with_value, "\n  %s ", name);
    snprintf(alone, sizeof alone, "\n  %s\n", name);
    if (times(help, with_value) + times(help, alone) != 1)
        fail_msg("%s must be listed once", name);
    /* The first 12 characters always fit in one line. */
    snprintf(first_words, sizeof first_words, "      %.12s", sentence);
    if (!strstr(help, first_words))
        fail_msg("%s: '%s' is not there", name, first_words);
}

/* The help begins with typical commands, models and ten options, and says how to see the other
 * options. */
TEST(test_help_begins_with_what_people_set)
{
    char *help = help_text(false);
    char last[96];
    int options = 0;
    assert_int_equal(times(help, "\n  bagserve serve --"), 4);
    assert_true(strstr(help, "\n  bagserve serve --") < strstr(help, "\nEach option is"));
    for (size_t i = 0; i < bag_num_options; i++) {
        snprintf(last, sizeof last, " %s\n", bag_variable_of(bag_options[i].setting.key).text);
        options += times(help, last);
    }
    assert_int_equal(options, 10 + 2); /* with --config and --models */
    snprintf(last, sizeof last,
             "\nbagserve serve --help-all prints all %zu options, and the keys of models.\n",
             bag_num_options);
    assert_string_equal(help + strlen(help) - strlen(last), last);
    free(help);
}

TEST(test_help_lists_everything_once)
{
    char *help = help_text(true);
    char variable_line[96];
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_option *option = &bag_options[i];
        expect_entry(help, bag_flag_of(option->setting.key).text, option->sentence);
        snprintf(variable_line, sizeof variable_line, " %s\n",
                 bag_variable_of(option->setting.key).text);
        assert_int_equal(times(help, variable_line), 1);
        if (bag_option_alias(option)) {
            snprintf(variable_line, sizeof variable_line, "\n      Also accepted: %s.\n",
                     bag_flag_of(bag_option_alias(option)).text);
            assert_int_equal(times(help, variable_line), 1);
        }
    }
#define BAG_X(id, key, follows, sentence) expect_entry(help, "--" key, sentence);
    BAG_FLAGS(BAG_X)
#undef BAG_X
#define BAG_X(key, sentence) expect_entry(help, key, sentence);
    BAG_MODEL_IDENTITY(BAG_X)
#undef BAG_X
#define BAG_X(member, key, TYPE, minimum, maximum, sentence) expect_entry(help, key, sentence);
    BAG_MODEL_KEYS(BAG_X)
#undef BAG_X
#define BAG_X(key, sentence) expect_entry(help, "features[]." key, sentence);
    BAG_FEATURE_IDENTITY(BAG_X)
#undef BAG_X
    free(help);
}

TEST(test_help_looks)
{
    static const char *const lines[] = {
        "\n  --table NAME=PATH\n      Serve the table in a file as a model. May be repeated.\n",
        "\n  --demo\n",
        "\nSection \"http\"\n  --host ADDRESS  ",
        "\n  --host ADDRESS                         127.0.0.1   BAGSERVE_HOST\n      Address",
        "\n  --port NUMBER                          8000        BAGSERVE_PORT\n",
        "\n  --max-body-bytes BYTES                 64 MiB      BAGSERVE_MAX_BODY_BYTES\n",
        "\n  --idle-timeout-s SECONDS               75          BAGSERVE_IDLE_TIMEOUT_S\n",
        "\n  --log-level error|warning|info|debug   info        BAGSERVE_LOG_LEVEL\n"};
    char *help = help_text(true);
    size_t column = 0;
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        if (times(help, lines[i]) != 1)
            fail_msg("no '%s' in:\n%s", lines[i], help);
    }
    for (const char *at = help; *at; at++) {
        column = *at == '\n' ? 0 : column + 1;
        assert_true(column <= 80);
        assert_false(*at == ' ' && at[1] == '\n');
    }
    free(help);
}

TEST(test_suggestions)
{
    static const char *const candidates[] = {"port", "host", "max_body_bytes", "idle_timeout_s"};
    static const struct {
        const char *written, *nearest;
        size_t distance;
    } cases[] = {{"port", "port", 0},  {"PORT", "port", 0},
                 {"prot", "port", 1},  {"pot", "port", 1},
                 {"porrt", "port", 1}, {"post", "port", 1}, /* as near as host: the first one */
                 {"hosts", "host", 1}, {"max_body", "max_body_bytes", 1},
                 {"", "port", 4},      {"timeout_s", "idle_timeout_s", 5}};
    char long_name[300];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_suggestion suggestion = {.written = cases[i].written};
        for (size_t j = 0; j < COUNT_OF(candidates); j++)
            bag_suggest_offer(&suggestion, candidates[j]);
        assert_string_equal(suggestion.nearest, cases[i].nearest);
        assert_int_equal(suggestion.distance, cases[i].distance);
    }
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    struct bag_suggestion suggestion = {.written = long_name};
    bag_suggest_offer(&suggestion, "port");
    assert_string_equal(suggestion.nearest, "port");
    assert_false(bag_suggestion_is_near(&suggestion));
}

/* A name is suggested only if little of it differs, and not by a long common beginning alone. */
TEST(test_nearness)
{
    static const struct {
        const char *written, *candidate;
        bool is_near;
    } cases[] = {{"prot", "port", true},
                 {"PORT", "port", true},
                 {"reducton", "reduction", true},
                 {"max-body", "max-body-bytes", true},
                 {"--bod", "--body", true},
                 {"conections", "connections", true},
                 {"aa", "a", true},
                 {"classification", "binary_data", false},
                 {"binary_data", "name", false},
                 {"e", "a", false},
                 {"", "log", false},
                 {"szie", "binary_data_size", false},
                 {"BAGSERVE_FOO", "BAGSERVE_HOST", false},
                 {"BAGSERVE_PROT", "BAGSERVE_PORT", true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_suggestion suggestion = {.written = cases[i].written};
        char question[64];
        bag_suggest_offer(&suggestion, cases[i].candidate);
        snprintf(question, sizeof question, "; did you mean '%s'?", cases[i].candidate);
        assert_string_equal(bag_suggestion_question(&suggestion, "'").text,
                            cases[i].is_near ? question : "");
    }
    struct bag_suggestion suggestion = {.written = "a\x1b["};
    bag_suggest_offer(&suggestion, "a\x1b[m");
    assert_string_equal(bag_suggestion_question(&suggestion, "").text, "; did you mean a?[m?");
}

/* The distance by its definition. */
static size_t distance_by_cells(const char *a, const char *b)
{
    size_t cells[6][6], m = strlen(a), n = strlen(b);
    for (size_t i = 0; i <= m; i++) {
        for (size_t j = 0; j <= n; j++) {
            size_t least = i ? cells[i - 1][j] + 1 : j;
            if (j && (!i || cells[i][j - 1] + 1 < least))
                least = cells[i][j - 1] + 1;
            if (i && j && cells[i - 1][j - 1] + (a[i - 1] != b[j - 1]) < least)
                least = cells[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                cells[i - 2][j - 2] + 1 < least)
                least = cells[i - 2][j - 2] + 1;
            cells[i][j] = least;
        }
    }
    return cells[m][n];
}

/* Word number `number` of those of up to 5 letters of three kinds. */
static void make_word(unsigned number, char word[6])
{
    size_t bytes = 0;
    for (; number > 0; number = (number - 1) / 3)
        word[bytes++] = "abc"[(number - 1) % 3];
    word[bytes] = '\0';
}

/* All pairs of words. */
TEST(test_distances)
{
    for (unsigned i = 0; i < 364 * 364; i++) {
        char written[6], candidate[6];
        make_word(i / 364, written);
        make_word(i % 364, candidate);
        struct bag_suggestion suggestion = {.written = written};
        bag_suggest_offer(&suggestion, candidate);
        size_t want = distance_by_cells(written, candidate);
        if (want > 1 && *written && strncmp(candidate, written, strlen(written)) == 0)
            want = 1;
        if (suggestion.distance != want)
            fail_msg("'%s' and '%s': %zu instead of %zu", written, candidate, suggestion.distance,
                     want);
    }
}

TEST(test_examples)
{
    static const struct {
        const char *name;
        size_t num_models;
    } examples[] = {
        {"minimal.json", 1}, {"production.json", 3}, {"collection.json", 3}, {"container.json", 0}};
    char *readme = example_text("README.md");
    for (size_t i = 0; i < COUNT_OF(examples); i++) {
        char *text = example_text(examples[i].name);
        file(text, NULL);
        assert_int_equal(fixture->config.num_models, examples[i].num_models);
        expect(bag_config_validate(&fixture->config, &fixture->problem), NULL);
        if (!strstr(readme, examples[i].name))
            fail_msg("README.md does not mention %s", examples[i].name);
        bag_config_free(&fixture->config);
        bag_config_init(&fixture->config);
        free(text);
    }
    free(readme);
}

/* A row of one of the README's tables for each key. */
static void expect_row(const char *readme, const char *key)
{
    char row[64];
    snprintf(row, sizeof row, "\n| `%s` |", key);
    if (times(readme, row) != 1)
        fail_msg("README.md must have one row for %s", key);
}

TEST(test_readme_has_every_key)
{
    char *readme = example_text("README.md");
    char *models = strstr(readme, "\n## Models\n");
    assert_non_null(models);
    *models++ = '\0'; /* an option and a key of a model may have the same name */
    for (size_t i = 0; i < bag_num_options; i++) {
        if (bag_options[i].section[0])
            expect_row(readme, bag_options[i].setting.key);
    }
#define BAG_X(key, sentence) expect_row(models, key);
    BAG_MODEL_IDENTITY(BAG_X)
#undef BAG_X
#define BAG_X(member, key, ...) expect_row(models, key);
    BAG_MODEL_KEYS(BAG_X)
#undef BAG_X
#define BAG_X(key, sentence) expect_row(models, "features[]." key);
    BAG_FEATURE_IDENTITY(BAG_X)
#undef BAG_X
    free(readme);
}

/* The last column of an option's row is its default, or says what an absent one means. */
static void expect_default(const char *readme, const struct bag_option *option)
{
    const char *expected = option->default_text ? option->default_text : "";
    char row[96], cell[96];
    snprintf(row, sizeof row, "\n| `%s` |", option->setting.key);
    const char *end = strstr(readme, row);
    assert_non_null(end);
    end += 1 + strcspn(end + 1, "\n") - strlen(" |");
    const char *begin = end;
    while (begin[-1] != '|')
        begin--;
    size_t bytes = 0;
    for (const char *at = begin + 1; at < end && bytes < sizeof cell - 1; at++) {
        if (*at != '`')
            cell[bytes++] = *at;
    }
    cell[bytes] = '\0';
    if (expected[0] ? strcmp(cell, expected) != 0 : !bytes)
        fail_msg("README.md says that the default of %s is '%s', not '%s'", option->setting.key,
                 cell, expected);
}

TEST(test_readme_has_every_default)
{
    char *readme = example_text("README.md");
    for (size_t i = 0; i < bag_num_options; i++) {
        if (bag_options[i].section[0])
            expect_default(readme, &bag_options[i]);
    }
    free(readme);
}

/* ---- the manual page and completions --------------------------------------------------------- */

static char *manual_text(void)
{
    FILE *stream = tmpfile();
    assert_non_null(stream);
    bag_config_print_manual(stream, "1.2.3");
    rewind(stream);
    return read_all(stream);
}

TEST(test_manual_has_every_option_once)
{
    char *text = manual_text();
    assert_non_null(strstr(text, "bagserve 1.2.3"));
    for (size_t i = 0; i < bag_num_options; i++) {
        char variable[96];
        snprintf(variable, sizeof variable, "Variable: %s.\n",
                 bag_variable_of(bag_options[i].setting.key).text);
        if (times(text, variable) != 1)
            fail_msg("the manual must name %s once", variable);
    }
    assert_null(strstr(text, "\n--")); /* every hyphen of a flag is escaped */
    free(text);
}

TEST(test_manual_has_keys_and_signals)
{
    static const char *const said[] = {
#define BAG_X(key, sentence) sentence,
        BAG_FEATURE_IDENTITY(BAG_X)
#undef BAG_X
            ".BR SIGTERM ,",
        ".B SIGHUP\n"};
    char *text = manual_text();
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        if (times(text, said[i]) != 1)
            fail_msg("the manual must say once: %s", said[i]);
    }
    free(text);
}

TEST(test_completions_know_every_flag)
{
    const char *shells[] = {"bash", "zsh", "fish"};
    for (size_t s = 0; s < 3; s++) {
        FILE *stream = tmpfile();
        assert_non_null(stream);
        assert_true(bag_config_print_completion(stream, shells[s]));
        rewind(stream);
        char *text = read_all(stream);
        for (size_t i = 0; i < bag_num_options; i++)
            assert_non_null(strstr(text, bag_flag_of(bag_options[i].setting.key).text + 2));
        free(text);
    }
    assert_false(bag_config_print_completion(stdout, "tcsh"));
}

/* The values of convert's --row-format are all formats of quantised rows. */
TEST(test_convert_knows_every_row_format)
{
    char expected[256] = "";
    const char *listed = NULL;
    for (int i = BAG_ROWS_PLAIN + 1; i < BAG_ROW_FORMAT_COUNT; i++)
        snprintf(expected + strlen(expected), sizeof expected - strlen(expected), "%s%s",
                 expected[0] ? "|" : "", bag_row_format_names[i]);
#define BAG_X(command, id, name, follows, sentence) \
    if (strcmp(name, "--row-format") == 0)          \
        listed = follows;
    BAG_CONVERT_FLAGS(BAG_X)
#undef BAG_X
    assert_string_equal(listed, expected);
}
