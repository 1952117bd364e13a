/* Collections: their features' keys, what they take over from their tables, and every rejection. */
#include "config_fixture.h"

#define ITEMS "{'name': 'items', 'path': 'x', 'reduction': 'mean', 'padding_idx': 4}, "

/* Applies a collection of these features beside a table `items`; the first line is the table's. */
static void features(const char *text, const char *expected)
{
    char document[768], full[512];
    reset();
    snprintf(document, sizeof document, "{'models': [" ITEMS "{'name': 'c',\n%s}]}", text);
    snprintf(full, sizeof full, "bagserve.json: line 2, %s", expected ? expected : "");
    file(document, expected ? full : NULL);
}

TEST(test_overrides)
{
    struct bag_feature_config pooling;
    const struct bag_rules *rules = &pooling.rules;
    features("'features': [{'name': 'a', 'model': 'items'},{'name': 'b', 'model': 'items', "
             "'reduction': 'sum', 'default_index': 0,'output_datatype': 'FP16', "
             "'output_row_format': 'int8', 'padding_idx': -1}]",
             NULL);
    expect(bag_config_validate(&fixture->config, &fixture->problem), NULL);
    const struct bag_model_config *items = &fixture->config.models[0];
    const struct bag_model_config *collection = &fixture->config.models[1];
    assert_null(collection->path);
    assert_int_equal(collection->num_features, 2);
    bag_config_pooling(items, &collection->features[0], &pooling);
    assert_int_equal(rules->reduction, BAG_MEAN);
    assert_int_equal(rules->default_index, -1);
    assert_true(rules->has_padding_idx);
    assert_int_equal(rules->padding_idx, 4);
    assert_int_equal(pooling.output_datatype, BAG_DTYPE_COUNT);
    bag_config_pooling(items, &collection->features[1], &pooling);
    assert_int_equal(rules->reduction,
                     BAG_SUM); /* the default, which the configuration also sets explicitly */
    assert_int_equal(rules->default_index, 0);
    assert_int_equal(rules->padding_idx, -1);
    assert_int_equal(pooling.output_datatype, BAG_F16);
    assert_int_equal(pooling.output_row_format, BAG_ROWS_INT8);
}

/* Returns the hash of a collection with this version in its feature, which must be `want`. */
static uint64_t pin(const char *version, uint64_t want)
{
    char text[160];
    struct bag_model_config copy;
    snprintf(text, sizeof text, "'features': [{'name': 'a', 'model': 'items'%s%s}]",
             *version ? ", 'version': " : "", version);
    features(text, NULL);
    assert_true(bag_model_config_copy(&copy, &fixture->config.models[1]));
    assert_int_equal(copy.features[0].version, want);
    uint64_t hash = bag_model_config_hash(&copy);
    bag_model_config_free(&copy);
    return hash;
}

TEST(test_pins)
{
    assert_true(pin("", 0) != pin("1", 1));
    assert_true(pin("1", 1) != pin("2", 2));
    assert_true(pin("7", 7) == pin("'7'", 7));
    pin("1e3", 1000);
    pin("9007199254740991", 9007199254740991);
}

TEST(test_rejections)
{
    static const char *const cases[][2] = {
        {"'features': []", "column 1: features in model 'c' must be an array of at least one "
                           "object: [{\"name\": ..., \"model\": ...}]"},
        {"'features': {}", "column 1: features in model 'c' must be an array of at least one "
                           "object: [{\"name\": ..., \"model\": ...}]"},
        {"'features': [3]", "column 14: features[0] in model 'c' must be an object: {\"name\": "
                            "..., \"model\": ...}"},
        {"'features': [{'model': 'items'}]",
         "column 14: key 'name' is missing in features[0] of model 'c'"},
        {"'features': [{'name': 'a'}]",
         "column 14: key 'model' is missing in feature 'a' of model 'c'"},
        {"'features': [{'name': 'a b', 'model': 'items'}]",
         "column 15: name 'a b' in features[0] of model 'c' must be 1 to 128 of A-Z a-z 0-9 . _ - "
         "with no dot in front"},
        {"'features': [{'name': 'embeddings', 'model': 'items'}]",
         "column 15: name 'embeddings' in feature 'embeddings' of model 'c' is taken: it is the "
         "output that holds all features side by side"},
        {"'features': [{'name': 'a', 'model': 'items'}, {'name': 'a', 'model': 'items'}]",
         "column 48: name 'a' in feature 'a' of model 'c' is duplicated"},
        {"'features': [{'name': 'a', 'modle': 'items'}]",
         "column 28: unknown key 'modle' in feature 'a' of model 'c'; did you mean 'model'?"},
        {"'features': [{'name': 'a', 'model': 'items', 'datatype': 'BF16'}]",
         "column 46: unknown key 'datatype' in feature 'a' of model 'c'"},
        {"'features': [{'name': 'a', 'model': 'items', 'reduction': 'avg'}]",
         "column 46: reduction \"avg\" in feature 'a' of model 'c': must be one of sum, mean, max, "
         "sqrtn, none"},
        {"'features': [{'name': 'a', 'model': 'items'}], 'path': 'y'",
         "column 48: key 'path' in model 'c' cannot be combined with 'features': a model is a "
         "table, a collection, or what its shards have"},
        {"'features': [{'name': 'a', 'model': 'items'}], 'reduction': 'max'",
         "column 48: key 'reduction' in model 'c' cannot be combined with 'features'; each feature "
         "says "
         "it for itself"},
        {"'features': [{'name': 'a', 'model': 'items'}], 'bias': 'b'",
         "column 48: key 'bias' in model 'c' cannot be combined with 'features'; each feature says "
         "it for itself"},
        {"'features': [{'name': 'a', 'model': 'items', 'version': 0}]",
         "column 46: version '0' in feature 'a' of model 'c' must be a whole number from 1 to "
         "9007199254740991"},
        {"'features': [{'name': 'a', 'model': 'items', 'version': [1]}]",
         "column 46: version in feature 'a' of model 'c' must be a whole number from 1"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        features(cases[i][0], cases[i][1]);
}

static void tables(const char *table, const char *expected)
{
    char text[128];
    snprintf(text, sizeof text, "'features': [{'name': 'a', 'model': '%s'}]", table);
    features(text, NULL);
    expect(bag_config_validate(&fixture->config, &fixture->problem), expected);
}

TEST(test_tables)
{
    tables("itmes", "model 'c', feature 'a': there is no model 'itmes'; did you mean 'items'?");
    tables("c", "model 'c', feature 'a': model 'c' is a collection; a feature is of a table");
    tables("items", NULL);
    expect(bag_config_add_model(&fixture->config, "items", "z", "12", &fixture->problem), NULL);
    assert_string_equal(bag_config_find_model(&fixture->config, "items")->path, "z");
    assert_null(bag_config_find_model(&fixture->config, "item"));
}

TEST(test_projections)
{
    const char *bias;
    file("{'models': [{'name': 'items', 'path': 'x', 'projection': 'm', 'bias': 'b'},{'name': 'c', "
         "'features': [{'name': 'a', 'model': 'items'},{'name': 'b', 'model': 'items', "
         "'projection': ''},{'name': 'd', 'model': 'items', 'projection': '/n'}]}]}",
         NULL);
    const struct bag_model_config *items = &fixture->config.models[0];
    const struct bag_feature_config *features = fixture->config.models[1].features;
    assert_string_equal(bag_config_projection(items, NULL, &bias), "m");
    assert_string_equal(bias, "b");
    assert_string_equal(bag_config_projection(items, &features[0], &bias), "m");
    assert_string_equal(bias, "b");
    assert_null(bag_config_projection(items, &features[1], &bias));
    assert_string_equal(bag_config_projection(items, &features[2], &bias), "/n");
    assert_null(bias); /* the bias of another matrix is not used */
    expect(bag_config_validate(&fixture->config, &fixture->problem), NULL);
    reset();
    file("{'models': [{'name': 't', 'path': 'x', 'bias': 'b'}]}", NULL);
    expect(bag_config_validate(&fixture->config, &fixture->problem),
           "model 't': 'bias' needs a 'projection' beside it");
}

/* Relative to the file, as all paths in it. */
TEST(test_paths_of_projections)
{
    static const char text[] = "{\"projection\": \"m.npy\", \"bias\": \"/b.npy\"}";
    struct bag_config *config = &fixture->config;
    assert_true(bag_config_add_model(config, "t", "t.npy", "1", &fixture->problem));
    expect(bag_config_apply_model_file(config, 0, "models/t/1/config.json", text, strlen(text),
                                       false, &fixture->problem),
           NULL);
    assert_string_equal(config->models[0].projection, "models/t/1/m.npy");
    assert_string_equal(config->models[0].bias, "/b.npy");
}

TEST(test_folders)
{
    static const char text[] = "{\"features\": [{\"name\": \"a\", \"model\": \"items\"}]}";
    struct bag_config *config = &fixture->config;
    struct bag_problem *problem = &fixture->problem;
    assert_true(bag_config_add_model(config, "c", NULL, "1", problem));
    expect(bag_config_apply_model_file(config, 0, "f", text, strlen(text), false, problem), NULL);
    assert_int_equal(config->models[0].num_features, 1);
    assert_true(bag_config_add_model(config, "t", "t.npy", "1", problem));
    expect(
        bag_config_apply_model_file(config, 1, "f", text, strlen(text), false, problem),
        "f: line 1, column 2: key 'features' in model 't' cannot be combined with the table in its "
        "folder, 't.npy'");
    assert_true(bag_config_add_model(config, "d", NULL, "1", problem));
    expect(bag_config_apply_model_file(config, 2, "f", "{}", 2, false, problem),
           "f: line 1, column 1: the folder in model 'd' has no table, so that 'features' must be "
           "here");
}
