/* Lists of origins: what may be in one, and which origins it allows. */
#include "testing.h"

#include "proto/cors.h"

TEST(test_takes_origins)
{
    static const char *const lists[] = {
        "*", "https://example.org", "http://localhost:3000",
        "http://127.0.0.1:8080, http://[::1]:8080",
        "https://a.example,https://b.example ,  chrome-extension://abcdef"};
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        struct bag_problem problem;
        if (!bag_cors_check(lists[i], &problem))
            fail_msg("%s: %s", lists[i], problem.text);
    }
}

TEST(test_rejects_what_no_browser_sends)
{
    static const struct {
        const char *list, *named;
    } cases[] = {{"", "''"},
                 {" ", "''"},
                 {"example.org", "'example.org'"},
                 {"https://", "'https://'"},
                 {"://example.org", "'://example.org'"},
                 {"https://example.org/", "'https://example.org/'"},
                 {"https://Example.org", "'https://Example.org'"},
                 {"HTTPS://example.org", "'HTTPS://example.org'"},
                 {"https://a.example,", "''"},
                 {"https://a.example,*", "'*'"},
                 {"a,https://b.example", "'a'"},
                 {"https://a.example https://b.example", "'https://a.example https://b.example'"},
                 {"null", "'null'"},
                 {"https://a.example\r\nX: y", "'https://a.example\\x0d\\x0aX: y'"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bag_problem problem;
        if (bag_cors_check(cases[i].list, &problem))
            fail_msg("accepted: %s", cases[i].list);
        if (!strstr(problem.text, cases[i].named) || !strstr(problem.text, "cors_origins"))
            fail_msg("%s: %s", cases[i].list, problem.text);
    }
}

TEST(test_allows)
{
    static const struct {
        const char *list, *origin;
        bool allowed;
    } cases[] = {
        {"*", "https://a.example", true},
        {"*", "null", true},
        {"https://a.example", "https://a.example", true},
        {"https://a.example", "https://a.exampl", false},
        {"https://a.example", "https://a.example.evil", false},
        {"https://a.example", "http://a.example", false},
        {"https://a.example", "", false},
        {"https://a.example", "null", false},
        {"https://a.example , https://b.example", "https://a.example", true},
        {"https://a.example , https://b.example", "https://b.example", true},
        {"https://a.example , https://b.example", "https://a.example , https://b.example", false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (bag_cors_allows(cases[i].list, cases[i].origin) != cases[i].allowed)
            fail_msg("%s for %s", cases[i].origin, cases[i].list);
    }
}
