/* Envelopes that were decoded before; see envelopes.h. */
#include "envelopes.h"

#include <stdlib.h>
#include <string.h>

/* Longer envelopes are decoded every time. */
#define MAX_HEADER_BYTES 8192

/* What decoding one of them may take. */
#define ARENA_BYTES (256 << 10)

struct bag_envelope {
    size_t header_bytes, body_bytes;
    struct bag_arena arena; /* of `request` */
    struct bag_v2_request request;
    char header[];
};

/* Any mixing will do: a wrong slot costs a decode and nothing else. */
static uint64_t hash(const char *header, size_t bytes)
{
    uint64_t sum = bytes * UINT64_C(0x9E3779B97F4A7C15), word;
    for (; bytes >= sizeof word; header += sizeof word, bytes -= sizeof word) {
        memcpy(&word, header, sizeof word);
        sum = (sum ^ word) * UINT64_C(0xFF51AFD7ED558CCD);
        sum ^= sum >> 32;
    }
    word = 0;
    memcpy(&word, header, bytes);
    sum = (sum ^ word) * UINT64_C(0xC4CEB9FE1A85EC53);
    return sum ^ sum >> 32;
}

static void free_envelope(struct bag_envelope *envelope)
{
    if (envelope)
        bag_arena_free(&envelope->arena);
    free(envelope);
}

const struct bag_v2_request *bag_envelopes_find(struct bag_envelopes *envelopes, const char *body,
                                                size_t body_bytes, size_t header_bytes)
{
    if (header_bytes > MAX_HEADER_BYTES || header_bytes == body_bytes)
        return NULL;
    struct bag_envelope *envelope = envelopes->slots[hash(body, header_bytes) % BAG_ENVELOPE_SLOTS];
    if (!envelope || envelope->header_bytes != header_bytes || envelope->body_bytes != body_bytes ||
        memcmp(envelope->header, body, header_bytes) != 0)
        return NULL;
    bag_v2_request_rebind(&envelope->request, body);
    return &envelope->request;
}

/* Decodes the body again into memory of the envelope's own. */
static struct bag_envelope *make_envelope(const char *body, size_t body_bytes, size_t header_bytes)
{
    struct bag_envelope *envelope = malloc(sizeof *envelope + header_bytes);
    struct bag_problem problem;
    if (!envelope)
        return NULL;
    bag_arena_init(&envelope->arena, ARENA_BYTES);
    envelope->header_bytes = header_bytes;
    envelope->body_bytes = body_bytes;
    memcpy(envelope->header, body, header_bytes);
    bool sound = bag_v2_request_decode(body, body_bytes, header_bytes, &envelope->arena,
                                       &envelope->request, &problem);
    for (size_t i = 0; sound && i < envelope->request.num_inputs; i++)
        sound = envelope->request.inputs[i].binary;
    if (sound)
        return envelope;
    free_envelope(envelope);
    return NULL;
}

void bag_envelopes_learn(struct bag_envelopes *envelopes, const char *body, size_t body_bytes,
                         size_t header_bytes)
{
    if (header_bytes > MAX_HEADER_BYTES || header_bytes == body_bytes)
        return;
    uint64_t now = hash(body, header_bytes);
    size_t slot = now % BAG_ENVELOPE_SLOTS;
    if (envelopes->seen[slot] != now) {
        envelopes->seen[slot] = now;
        return;
    }
    free_envelope(envelopes->slots[slot]);
    envelopes->slots[slot] = make_envelope(body, body_bytes, header_bytes);
}

void bag_envelopes_free(struct bag_envelopes *envelopes)
{
    for (size_t i = 0; i < BAG_ENVELOPE_SLOTS; i++)
        free_envelope(envelopes->slots[i]);
    memset(envelopes, 0, sizeof *envelopes);
}
