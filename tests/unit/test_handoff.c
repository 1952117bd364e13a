/* Items that any thread passes to one thread: their order, and which caller must wake that
 * thread. */
#include "testing.h"

#include "server/system/handoff.h"

#include <pthread.h>

#define THREADS 4
#define ITEMS   20000

struct item {
    size_t thread, number;
    struct bag_handoff_item link;
};

static struct item *item_of(struct bag_handoff_item *link)
{
    return BAG_HANDOFF_OWNER(link, struct item, link);
}

/* Only a push to an empty list reports that it was empty. Items are taken in the order of pushes.
 */
TEST(test_takes_items_in_order)
{
    struct bag_handoff handoff = {NULL};
    struct item items[3] = {{.number = 0}, {.number = 1}, {.number = 2}};
    assert_null(bag_handoff_take(&handoff));
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(bag_handoff_push(&handoff, &items[i].link), i == 0);
        struct bag_handoff_item *link = bag_handoff_take(&handoff);
        for (size_t i = 0; i < 3; i++, link = link->next)
            assert_int_equal(item_of(link)->number, i);
        assert_null(link);
        assert_null(bag_handoff_take(&handoff));
    }
}

static struct bag_handoff shared;
static struct item pushed[THREADS][ITEMS];
static atomic_size_t wakes;

static void *push_all(void *context)
{
    struct item *items = context;
    for (size_t i = 0; i < ITEMS; i++)
        atomic_fetch_add(&wakes, bag_handoff_push(&shared, &items[i].link));
    return NULL;
}

/* With several pushing threads no item is lost, each thread's items keep their order, and there is
 * a wake-up for each non-empty take. */
TEST(test_loses_no_item_of_many_threads)
{
    pthread_t threads[THREADS];
    size_t next[THREADS] = {0}, left = (size_t)THREADS * ITEMS, takes = 0;
    for (size_t i = 0; i < THREADS; i++) {
        for (size_t j = 0; j < ITEMS; j++)
            pushed[i][j] = (struct item){.thread = i, .number = j};
        assert_int_equal(pthread_create(&threads[i], NULL, push_all, pushed[i]), 0);
    }
    while (left) {
        struct bag_handoff_item *link = bag_handoff_take(&shared);
        takes += link != NULL;
        for (; link; link = link->next, left--)
            assert_int_equal(item_of(link)->number, next[item_of(link)->thread]++);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(wakes, takes);
    assert_null(bag_handoff_take(&shared));
}
