/* Names that are looked up until a deadline. */
#include "testing.h"

#include "server/system/deadline.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool answers; /* look-ups of "slow" return */
    int slow;     /* look-ups of "slow" that have not returned */
} names = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* In place of the C library's: "slow" has no answer until names.answers, "known" is the loopback.
 */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **list)
{
    lookup *find;
    void *found = dlsym(RTLD_NEXT, "getaddrinfo");
    memcpy(&find, &found, sizeof find);
    bool is_numeric = hints && hints->ai_flags & AI_NUMERICHOST;
    if (strcmp(host, "slow") == 0 && !is_numeric) {
        pthread_mutex_lock(&names.lock);
        names.slow++;
        while (!names.answers)
            pthread_cond_wait(&names.changed, &names.lock);
        names.slow--;
        pthread_cond_broadcast(&names.changed);
        pthread_mutex_unlock(&names.lock);
    }
    bool is_known = strcmp(host, "slow") == 0 || strcmp(host, "known") == 0;
    return find(is_known && !is_numeric ? "127.0.0.1" : host, service, hints, list);
}

static void expect_found(const char *host)
{
    struct bag_problem problem;
    struct addrinfo *list = bag_deadline_find(host, 80, bag_deadline_in_ms(60000), &problem);
    if (!list)
        fail_msg("%s", problem.text);
    assert_int_equal(list->ai_family, AF_INET);
    freeaddrinfo(list);
}

static void expect_problem(const char *host, uint64_t timeout_ms, const char *words)
{
    struct bag_problem problem;
    assert_null(bag_deadline_find(host, 80, bag_deadline_in_ms(timeout_ms), &problem));
    if (!strstr(problem.text, words))
        fail_msg("'%s' does not say '%s'", problem.text, words);
}

TEST(test_finds_names_in_time)
{
    expect_found("127.0.0.1");
    expect_found("known");
    expect_problem("no.such.name.invalid", 60000, "host 'no.such.name.invalid': ");
}

/* A caller waits for a name no longer than until the deadline, and threads without an answer do not
 * accumulate. */
TEST(test_gives_up_at_the_deadline)
{
    expect_problem("slow", 20, "host 'slow': looking up the name took too long");
    for (int i = 1; i < BAG_DEADLINE_MAX_LOOKUPS; i++)
        expect_problem("slow", 1, "took too long");
    expect_problem("known", 60000, "host 'known': too many names are being looked up");
    expect_found("127.0.0.1");
    pthread_mutex_lock(&names.lock);
    names.answers = true;
    pthread_cond_broadcast(&names.changed);
    while (names.slow > 0)
        pthread_cond_wait(&names.changed, &names.lock);
    pthread_mutex_unlock(&names.lock);
    struct bag_problem problem;
    struct addrinfo *list = NULL;
    while (!list) /* until the threads have counted themselves out */
        list = bag_deadline_find("slow", 80, bag_deadline_in_ms(60000), &problem);
    freeaddrinfo(list);
}
