/* A client for bagserve in one header, which needs only libcurl (C99 or C++11; link with -lcurl).
 *
 *     struct bagserve_client *client = bagserve_open("http://127.0.0.1:8000", 30000);
 *     int64_t indices[] = {7, 99999, 7, 12345}, offsets[] = {0, 3};
 *     struct bagserve_rows rows;
 *     if (bagserve_offsets(client, "items", indices, 4, offsets, 2, NULL, &rows) != BAGSERVE_OK)
 *         fprintf(stderr, "%s\n", bagserve_error(client));
 *     else
 *         printf("%zu rows of %zu\n", rows.count, rows.width);
 *     int64_t values[] = {0, 2, 4, 1, 7}, lengths[] = {2, 0, 1, 1, 1, 0};
 *     struct bagserve_output outputs[3];
 *     size_t count;
 *     if (bagserve_kjt(client, "ranker", values, 5, lengths, 6, NULL, outputs, 3, &count) ==
 *         BAGSERVE_OK)
 *         printf("%s has %zu rows\n", outputs[0].name, outputs[0].rows.count);
 *     bagserve_close(client);
 *
 * If the server has a token_file, call bagserve_set_token after bagserve_open. The certificates of
 * https:// are verified with those of the system; CURLOPT_CAINFO on client->curl selects others.
 *
 * Tables and weights must be FP32, or convertible to it by the server; results are FP32. Tensors
 * travel as raw bytes, so the machine must be little-endian. A client keeps its connection open.
 * One thread at a time may use it. If several threads open clients, the program calls
 * curl_global_init before it starts them.
 *
 * Pooling changes nothing on the server, so a call may be sent again without harm. libcurl does so
 * if a connection that was kept turns out to be closed. Nothing else is repeated. After
 * BAGSERVE_UNAVAILABLE the caller may try again later. */
#ifndef BAGSERVE_CLIENT_H
#define BAGSERVE_CLIENT_H

#include <curl/curl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum bagserve_result {
    BAGSERVE_OK,
    BAGSERVE_NO_MEMORY,
    BAGSERVE_NO_ANSWER,   /* no connection, a broken one, no answer in time, or a status from 500 on
                             except 503 and 507 */
    BAGSERVE_REFUSED,     /* the request is wrong; sending it again does not help */
    BAGSERVE_UNAVAILABLE, /* status 503 or 507: loading, stopping, overloaded or full; try again
                             later */
    BAGSERVE_BAD_ANSWER,  /* a reply that this client does not understand */
    BAGSERVE_UNAUTHORIZED, /* no token, an unknown one, or one without the scope for the call */
    BAGSERVE_CONFLICT      /* a change that does not fit what is served (bagserve_admin.h) */
};

/* FP32 rows, [count, width], row by row. `values` belongs to the client and is valid until its next
 * call or bagserve_close(). */
struct bagserve_rows {
    const float *values;
    size_t count, width;
};

/* One output of a reply with several. */
struct bagserve_output {
    char name[132];
    struct bagserve_rows rows;
    size_t row_elements; /* elements of an encoded row; not for callers */
};

/* A row format that the client decodes. `bits` is the size of a code, negative for signed codes.
 * Codes are floats if they have `exponent_bits`, and integers otherwise. A row has `num_params`
 * numbers of `param_bytes` bytes, the scale and the bias, if it has these. They precede the codes
 * if `in_front` is not 0, and otherwise follow them. */
struct bagserve_row_format_ {
    const char *name;
    int bits, exponent_bits, param_bytes, num_params, in_front;
};

struct bagserve_client {
    CURL *curl;
    char *url;           /* without a slash at its end */
    char *authorization; /* owned; the header of a token; NULL: none */
    char *body, *answer; /* owned; the body and the reply of the last call */
    size_t answer_bytes, answer_room, body_room;
    size_t header_bytes; /* length of the answer's JSON header; 0: the whole answer is JSON */
    float *values;
    const struct bagserve_row_format_ *row_format; /* format of replies; NULL: FP32 */
    uint64_t version; /* version that calls ask; 0: the one that is served by default */
    char error[CURL_ERROR_SIZE + 512];
    char code[32]; /* code of the last error; empty: none */
};

/* ---- beginning and end ----------------------------------------------------------------------- */

/* Closes the connection and frees the client with all rows that it returned. NULL is ignored. */
static inline void bagserve_close(struct bagserve_client *client)
{
    if (!client)
        return;
    curl_easy_cleanup(client->curl);
    free(client->url);
    free(client->authorization);
    free(client->body);
    free(client->answer);
    free(client->values);
    free(client);
}

/* Makes a client. It connects with the first call. `url` is "http://HOST:PORT" or
 * "https://HOST:PORT", with or without a slash at its end, or "unix:///PATH" for a Unix-domain
 * socket. A call fails with BAGSERVE_NO_ANSWER after `timeout_ms`; 0: never. Returns NULL if memory
 * is exhausted. The caller closes the client with bagserve_close. */
static inline struct bagserve_client *bagserve_open(const char *url, long timeout_ms)
{
    struct bagserve_client *client = (struct bagserve_client *)calloc(1, sizeof *client);
    const char *path = strncmp(url, "unix://", 7) == 0 ? url + 7 : NULL;
    if (!client)
        return NULL;
    if (path)
        url = "http://localhost";
    client->curl = curl_easy_init();
    client->url = strdup(url);
    if (!client->curl || !client->url ||
        (path && curl_easy_setopt(client->curl, CURLOPT_UNIX_SOCKET_PATH, path) != CURLE_OK)) {
        bagserve_close(client);
        return NULL;
    }
    for (size_t bytes = strlen(url); bytes && url[bytes - 1] == '/'; bytes--)
        client->url[bytes - 1] = 0;
    curl_easy_setopt(client->curl, CURLOPT_ERRORBUFFER, client->error);
    curl_easy_setopt(client->curl, CURLOPT_TIMEOUT_MS, timeout_ms);
    curl_easy_setopt(client->curl, CURLOPT_NOSIGNAL, 1L);
    return client;
}

/* Returns the error of the last call as one line of text. If the server answered, the text is the
 * server's. */
static inline const char *bagserve_error(const struct bagserve_client *client)
{
    return client->error;
}

/* Returns the code of the last call's error, as "bad_request": the kind of the error, of which
 * PROTOCOL.md has a list. It is empty if the server has sent none. */
static inline const char *bagserve_error_code(const struct bagserve_client *client)
{
    return client->code;
}

/* Sets the error of the last call and returns `result`. Not for callers. */
static inline enum bagserve_result bagserve_fail_(struct bagserve_client *client,
                                                  enum bagserve_result result, const char *text)
{
    snprintf(client->error, sizeof client->error, "%s", text);
    return result;
}

/* Asks the server to encode the rows of its replies from now on, as "int8", "f8_e5m2" or any other
 * of its row formats; NULL: not. The client decodes them. Returns BAGSERVE_REFUSED for a format
 * that it does not know; replies are then not encoded. */
static inline enum bagserve_result bagserve_set_row_format(struct bagserve_client *client,
                                                           const char *name)
{
    static const struct bagserve_row_format_ formats[] = {
        {"int8", 8, 0, 4, 2, 0},           {"int8_f16_front", 8, 0, 2, 2, 1},
        {"int8_f16_back", 8, 0, 2, 2, 0},  {"int8_symmetric", -8, 0, 4, 1, 0},
        {"int4", 4, 0, 2, 2, 0},           {"int8_symmetric_f16", -8, 0, 2, 1, 0},
        {"int2", 2, 0, 2, 2, 0},           {"int4_f16_front", 4, 0, 2, 2, 1},
        {"int2_f16_front", 2, 0, 2, 2, 1}, {"f8_e4m3", 8, 4, 4, 0, 0},
        {"f8_e5m2", 8, 5, 4, 0, 0},        {"f8_e4m3_scaled", 8, 4, 4, 1, 0},
        {"f8_e5m2_scaled", 8, 5, 4, 1, 0}};
    size_t i;
    client->row_format = NULL;
    for (i = 0; name && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            client->row_format = &formats[i];
    return !name || client->row_format
               ? BAGSERVE_OK
               : bagserve_fail_(client, BAGSERVE_REFUSED, "no row format that this client decodes");
}

/* Asks this version of models from now on; 0: the one that is served by default. Calls of
 * bagserve_admin.h name their version themselves. */
static inline void bagserve_set_version(struct bagserve_client *client, uint64_t version)
{
    client->version = version;
}

/* Sends this token with every call from now on; NULL: none. The client keeps a copy. Returns
 * BAGSERVE_REFUSED if the token has characters that a header cannot contain. */
static inline enum bagserve_result bagserve_set_token(struct bagserve_client *client,
                                                      const char *token)
{
    static const char name[] = "Authorization: Bearer ";
    char *header = NULL;
    for (const char *at = token; at && *at; at++) {
        if (*at < 0x21 || *at > 0x7E)
            return bagserve_fail_(client, BAGSERVE_REFUSED,
                                  "a token must be of visible ASCII characters");
    }
    if (token && !(header = (char *)malloc(sizeof name + strlen(token))))
        return bagserve_fail_(client, BAGSERVE_NO_MEMORY, "not enough memory");
    if (header)
        strcat(strcpy(header, name), token);
    free(client->authorization);
    client->authorization = header;
    return BAGSERVE_OK;
}

/* ---- the rest is not for callers ------------------------------------------------------------- */

/* Called by libcurl with each piece of the reply's body. Appends it to client->answer, which always
 * ends with a NUL. Returns 0, which aborts the call, if memory is exhausted. */
static inline size_t bagserve_on_body_(char *data, size_t size, size_t count, void *context)
{
    struct bagserve_client *client = (struct bagserve_client *)context;
    size_t bytes = size * count, needed = client->answer_bytes + bytes + 1;
    if (needed > client->answer_room) {
        char *answer = (char *)realloc(client->answer, 2 * needed);
        if (!answer)
            return 0;
        client->answer = answer;
        client->answer_room = 2 * needed;
    }
    memcpy(client->answer + client->answer_bytes, data, bytes);
    client->answer_bytes += bytes;
    client->answer[client->answer_bytes] = 0;
    return bytes;
}

/* Called by libcurl with each line of the reply's head. Takes the length of the JSON header. */
static inline size_t bagserve_on_header_(char *data, size_t size, size_t count, void *context)
{
    static const char name[] = "inference-header-content-length:";
    struct bagserve_client *client = (struct bagserve_client *)context;
    if (size * count > sizeof name && strncasecmp(data, name, sizeof name - 1) == 0)
        client->header_bytes = strtoul(data + sizeof name - 1, NULL, 10);
    return size * count;
}

/* Copies the text of a member of the answer, without decoding escapes. `key` is the member up to
 * the first quote of its value. The text is empty if there is no such member. */
static inline void bagserve_take_text_(const struct bagserve_client *client, const char *key,
                                       char *text, size_t room)
{
    const char *at = client->answer ? strstr(client->answer, key) : NULL;
    size_t used = 0;
    for (at = at ? at + strlen(key) : ""; *at && *at != '"' && used + 2 < room; at++) {
        if (*at == '\\' && at[1])
            text[used++] = *at++;
        text[used++] = *at;
    }
    text[used] = 0;
}

/* Stores the text and the code of {"code":"...","error":"..."}. */
static inline void bagserve_take_error_(struct bagserve_client *client, long status)
{
    bagserve_take_text_(client, "\"code\":\"", client->code, sizeof client->code);
    bagserve_take_text_(client, "\"error\":\"", client->error, sizeof client->error);
    if (!*client->error)
        snprintf(client->error, sizeof client->error, "status %ld", status);
}

/* Returns a list of headers, which the caller frees, or NULL if memory is exhausted. */
static inline struct curl_slist *bagserve_headers_(const char *const *lines, size_t count)
{
    struct curl_slist *headers = NULL, *longer;
    for (size_t i = 0; i < count; i++, headers = longer) {
        longer = curl_slist_append(headers, lines[i]);
        if (!longer) {
            curl_slist_free_all(headers);
            return NULL;
        }
    }
    return headers;
}

/* Sets the URL of the next call to `before` MODEL `after`, with the model's name escaped. */
static inline enum bagserve_result bagserve_set_url_(struct bagserve_client *client,
                                                     const char *before, const char *model,
                                                     const char *after)
{
    char url[1024], *name = curl_easy_escape(client->curl, model, 0);
    if (!name)
        return bagserve_fail_(client, BAGSERVE_NO_MEMORY, "not enough memory");
    int bytes = snprintf(url, sizeof url, "%s%s%s%s", client->url, before, name, after);
    curl_free(name);
    if (bytes < 0 || (size_t)bytes >= sizeof url)
        return bagserve_fail_(client, BAGSERVE_REFUSED, "the model's name is too long");
    return curl_easy_setopt(client->curl, CURLOPT_URL, url) == CURLE_OK
               ? BAGSERVE_OK
               : bagserve_fail_(client, BAGSERVE_NO_MEMORY, "not enough memory");
}

/* Sends the first `body_bytes` of client->body with these headers. The reply is then in
 * client->answer. */
static inline CURLcode bagserve_perform_(struct bagserve_client *client, struct curl_slist *headers,
                                         size_t body_bytes)
{
    client->answer_bytes = client->header_bytes = 0;
    client->error[0] = client->code[0] = 0;
    curl_easy_setopt(client->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(client->curl, CURLOPT_POSTFIELDS, client->body);
    curl_easy_setopt(client->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body_bytes);
    curl_easy_setopt(client->curl, CURLOPT_WRITEFUNCTION, bagserve_on_body_);
    curl_easy_setopt(client->curl, CURLOPT_WRITEDATA, client);
    curl_easy_setopt(client->curl, CURLOPT_HEADERFUNCTION, bagserve_on_header_);
    curl_easy_setopt(client->curl, CURLOPT_HEADERDATA, client);
    CURLcode code = curl_easy_perform(client->curl);
    curl_easy_setopt(client->curl, CURLOPT_HTTPHEADER, NULL);
    return code;
}

/* Returns the result of a call that was answered with this status. */
static inline enum bagserve_result bagserve_result_of_(long status)
{
    if (status == 200)
        return BAGSERVE_OK;
    if (status == 401 || status == 403)
        return BAGSERVE_UNAUTHORIZED;
    if (status == 409)
        return BAGSERVE_CONFLICT;
    if (status == 503 || status == 507)
        return BAGSERVE_UNAVAILABLE;
    return status >= 500 ? BAGSERVE_NO_ANSWER : BAGSERVE_REFUSED;
}

/* Sends client->body to `before` MODEL `after`. Its first `header_bytes` are the JSON header. The
 * reply is then in client->answer. A status other than 200 sets the error to the server's sentence.
 */
static inline enum bagserve_result bagserve_post_(struct bagserve_client *client,
                                                  const char *before, const char *model,
                                                  const char *after, size_t header_bytes,
                                                  size_t body_bytes)
{
    char length[64];
    long status = 0;
    enum bagserve_result result = bagserve_set_url_(client, before, model, after);
    if (result != BAGSERVE_OK)
        return result;
    snprintf(length, sizeof length, "Inference-Header-Content-Length: %zu", header_bytes);
    /* An empty Expect header stops libcurl from waiting for "100 Continue" before it sends a large
     * body. */
    const char *const lines[] = {length, "Expect:", client->authorization};
    struct curl_slist *headers = bagserve_headers_(lines, client->authorization ? 3 : 2);
    if (!headers)
        return bagserve_fail_(client, BAGSERVE_NO_MEMORY, "not enough memory");
    CURLcode code = bagserve_perform_(client, headers, body_bytes);
    curl_slist_free_all(headers);
    if (code != CURLE_OK) /* if libcurl filled the error buffer, its text is more precise */
        return *client->error
                   ? BAGSERVE_NO_ANSWER
                   : bagserve_fail_(client, BAGSERVE_NO_ANSWER, curl_easy_strerror(code));
    curl_easy_getinfo(client->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        bagserve_take_error_(client, status);
    return bagserve_result_of_(status);
}

/* Returns the size in bytes of an encoded row of `elements` elements. */
static inline size_t bagserve_row_bytes_(const struct bagserve_row_format_ *format, size_t elements)
{
    size_t per_byte = 8 / (size_t)abs(format->bits);
    return (elements + per_byte - 1) / per_byte +
           (size_t)format->param_bytes * (size_t)format->num_params;
}

/* Returns the value of an FP16. */
static inline float bagserve_half_(unsigned half)
{
    /* Exponents of f16 and f32 differ by 112; subnormal numbers have none. */
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    float value;
    if ((half & 0x7c00) == 0x7c00)
        bits |= 0x7f800000;
    else if (half & 0x7c00)
        bits += (uint32_t)112 << 23;
    memcpy(&value, &bits, sizeof value);
    if (!(half & 0x7c00))
        value = (float)(half & 0x3ff) / 16777216.0f;
    return half & 0x8000 ? -value : value;
}

/* Returns a scale or a bias, which is an FP32 (`bytes` is 4) or an FP16. */
static inline float bagserve_param_(const unsigned char *at, int bytes)
{
    uint16_t half;
    float value;
    if (bytes == 4) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&half, at, sizeof half);
    return bagserve_half_(half);
}

/* Returns what a code means without scale and bias. */
static inline double bagserve_code_(const struct bagserve_row_format_ *format, unsigned code)
{
    if (format->exponent_bits == 5) /* f8_e5m2: the upper byte of an FP16 */
        return bagserve_half_(code << 8);
    if (format->exponent_bits == 4) { /* f8_e4m3: exponents of FP16 differ by 8; 127 is a NaN */
        unsigned half = (code & 127) == 127 ? 0x7e00 : (code & 127) << 7;
        return 256.0 * bagserve_half_((code & 128) << 8 | half);
    }
    return format->bits < 0 && code > 127 ? (int)code - 256 : (int)code;
}

/* Decodes a row of `elements` elements to code * scale + bias. */
static inline void bagserve_decode_(const struct bagserve_row_format_ *format,
                                    const unsigned char *row, size_t elements, float *values)
{
    size_t row_bytes = bagserve_row_bytes_(format, elements), bits = (size_t)abs(format->bits), i;
    size_t params_bytes = (size_t)format->param_bytes * (size_t)format->num_params;
    const unsigned char *params = format->in_front ? row : row + row_bytes - params_bytes;
    const unsigned char *codes = format->in_front ? row + params_bytes : row;
    double scale = format->num_params > 0 ? bagserve_param_(params, format->param_bytes) : 1;
    double bias = format->num_params > 1
                      ? bagserve_param_(params + format->param_bytes, format->param_bytes)
                      : -0.0; /* changes no number, not even the sign of zero */
    for (i = 0; i < elements; i++) {
        unsigned code = codes[i * bits / 8] >> i * bits % 8 & ((1u << bits) - 1);
        values[i] = (float)(bagserve_code_(format, code) * scale + bias);
    }
}

/* Reads the name and the shape of the output whose name begins at *at, and moves *at to the end of
 * the shape. Returns 0 if the output has another type than the client asked for. It is no general
 * parser: it searches for the keys in the order in which bagserve writes them. */
static inline int bagserve_read_output_(const struct bagserve_client *client, char **at,
                                        struct bagserve_output *output)
{
    const struct bagserve_row_format_ *format = client->row_format;
    size_t last = 1;
    size_t name_bytes = strcspn(*at, "\"");
    if (name_bytes >= sizeof output->name)
        return 0;
    memcpy(output->name, *at, name_bytes);
    output->name[name_bytes] = 0;
    char *shape = strstr(*at, "\"shape\":["),
         *type = strstr(*at, format ? "\"datatype\":\"UINT8\"" : "\"datatype\":\"FP32\"");
    char *elements = strstr(*at, "\"row_elements\":");
    char *next = strstr(*at, "{\"name\":\"");
    if (!shape || !type || (next && (shape > next || type > next)))
        return 0;
    shape += 9;
    output->rows.count = strtoull(shape, &shape, 10);
    output->rows.width = 1;
    while (*shape == ',') {
        last = strtoull(shape + 1, &shape, 10);
        output->rows.width *= last;
    }
    *at = shape;
    if (!format)
        return *shape == ']';
    output->row_elements =
        elements && (!next || elements < next) ? strtoull(elements + 15, NULL, 10) : 0;
    if (*shape != ']' || last == 0 || last != bagserve_row_bytes_(format, output->row_elements))
        return 0;
    output->rows.width = output->rows.width / last * output->row_elements;
    return 1;
}

/* Reads the outputs that the JSON describes, up to `room`. Returns their number, or SIZE_MAX if one
 * cannot be read. */
static inline size_t bagserve_read_outputs_(const struct bagserve_client *client, char *json,
                                            struct bagserve_output *outputs, size_t room)
{
    size_t count = 0;
    char *at = strstr(json, "\"outputs\":[");
    while (at && (at = strstr(at, "{\"name\":\"")) != NULL) {
        at += 9;
        if (count == room || !bagserve_read_output_(client, &at, &outputs[count]))
            return SIZE_MAX;
        count++;
    }
    return count;
}

/* Sets the outputs to the rows of the reply, which follow the JSON one after the other. Returns
 * BAGSERVE_BAD_ANSWER if there are more than `room` outputs, or the sizes do not match. */
static inline enum bagserve_result bagserve_take_outputs_(struct bagserve_client *client,
                                                          struct bagserve_output *outputs,
                                                          size_t room, size_t *count)
{
    const struct bagserve_row_format_ *format = client->row_format;
    size_t i, j, needed = 0, encoded = 0;
    if (!client->answer || client->header_bytes == 0 || client->header_bytes > client->answer_bytes)
        return bagserve_fail_(client, BAGSERVE_BAD_ANSWER, "the answer has no binary tensor");
    char *raw = client->answer + client->header_bytes, kept = *raw;
    *raw = 0; /* the JSON ends here, for the searches */
    *count = bagserve_read_outputs_(client, client->answer, outputs, room);
    *raw = kept;
    if (*count == SIZE_MAX)
        return bagserve_fail_(
            client, BAGSERVE_BAD_ANSWER,
            "the answer's outputs are of another type, or more than there is room");
    size_t raw_bytes = client->answer_bytes - client->header_bytes;
    for (i = 0; i < *count; i++) {
        size_t numbers = outputs[i].rows.count * outputs[i].rows.width;
        size_t elements = format ? outputs[i].row_elements : 1;
        needed += numbers;
        encoded += !format    ? numbers * sizeof(float)
                   : elements ? numbers / elements * bagserve_row_bytes_(format, elements)
                              : 0;
    }
    if (*count == 0 || raw_bytes != encoded)
        return bagserve_fail_(client, BAGSERVE_BAD_ANSWER, "the answer's size is not its shape's");
    /* The rows are copied, because they need not be aligned in the reply. */
    float *values = (float *)realloc(client->values, needed ? needed * sizeof *values : 1);
    if (!values)
        return bagserve_fail_(client, BAGSERVE_NO_MEMORY, "not enough memory");
    client->values = values;
    if (!format)
        memcpy(values, raw, raw_bytes);
    for (i = 0; i < *count; i++) {
        size_t numbers = outputs[i].rows.count * outputs[i].rows.width;
        size_t elements = outputs[i].row_elements;
        outputs[i].rows.values = values;
        for (j = 0; format && elements && j < numbers; j += elements) {
            bagserve_decode_(format, (const unsigned char *)raw, elements, values + j);
            raw += bagserve_row_bytes_(format, elements);
        }
        values += numbers;
    }
    return BAGSERVE_OK;
}

/* One tensor of a request. */
struct bagserve_input_ {
    const char *name, *datatype;
    const void *data; /* NULL: not sent */
    size_t dimensions[2], rank, element_bytes;
};

/* Returns the size of an input in bytes; 0 if it is not sent. */
static inline size_t bagserve_input_bytes_(const struct bagserve_input_ *input)
{
    size_t count = input->dimensions[0] * (input->rank == 2 ? input->dimensions[1] : 1);
    return input->data ? count * input->element_bytes : 0;
}

/* Appends the object of an input to the JSON. Returns the new length. `room` suffices for the
 * inputs of every call. */
static inline size_t bagserve_describe_(const struct bagserve_input_ *input, char *json,
                                        size_t used, size_t room)
{
    char second[32] = "";
    if (input->rank == 2)
        snprintf(second, sizeof second, ",%zu", input->dimensions[1]);
    int bytes = snprintf(json + used, room - used,
                         "%s{\"name\":\"%s\",\"datatype\":\"%s\",\"shape\":[%zu%s],"
                         "\"parameters\":{\"binary_data_size\":%zu}}",
                         json[used - 1] == '[' ? "" : ",", input->name, input->datatype,
                         input->dimensions[0], second, bagserve_input_bytes_(input));
    return used + (size_t)bytes;
}

/* Makes the body of a call in client->body: a JSON object that begins with `start` and lists the
 * inputs, and their bytes. Inputs without data are left out. */
static inline enum bagserve_result bagserve_compose_(struct bagserve_client *client,
                                                     const char *start,
                                                     const struct bagserve_input_ *inputs,
                                                     size_t num_inputs, size_t *header_bytes,
                                                     size_t *body_bytes)
{
    char json[2048];
    size_t used = (size_t)snprintf(json, sizeof json, "{%s\"inputs\":[", start);
    size_t needed = sizeof json, i;
    for (i = 0; i < num_inputs; i++) {
        if (inputs[i].data)
            used = bagserve_describe_(&inputs[i], json, used, sizeof json - 3);
        needed += bagserve_input_bytes_(&inputs[i]);
    }
    memcpy(json + used, "]}", 2);
    used += 2;
    if (needed > client->body_room) {
        free(client->body);
        client->body_room = (client->body = (char *)malloc(needed)) ? needed : 0;
        if (!client->body)
            return bagserve_fail_(client, BAGSERVE_NO_MEMORY, "not enough memory");
    }
    memcpy(client->body, json, used);
    *header_bytes = *body_bytes = used;
    for (i = 0; i < num_inputs; i++) {
        size_t bytes = bagserve_input_bytes_(&inputs[i]);
        if (bytes)
            memcpy(client->body + *body_bytes, inputs[i].data, bytes);
        *body_bytes += bytes;
    }
    return BAGSERVE_OK;
}

/* Sends an inference request with these inputs. The reply is then in client->answer. */
static inline enum bagserve_result bagserve_infer_(struct bagserve_client *client,
                                                   const char *model,
                                                   const struct bagserve_input_ *inputs,
                                                   size_t num_inputs)
{
    size_t header_bytes, body_bytes;
    char start[128], path[64] = "/infer";
    if (client->version)
        snprintf(path, sizeof path, "/versions/%llu/infer", (unsigned long long)client->version);
    snprintf(start, sizeof start, "\"parameters\":{\"binary_data_output\":true,\"%s\":\"%s\"},",
             client->row_format ? "output_row_format" : "output_datatype",
             client->row_format ? client->row_format->name : "FP32");
    enum bagserve_result result =
        bagserve_compose_(client, start, inputs, num_inputs, &header_bytes, &body_bytes);
    return result == BAGSERVE_OK
               ? bagserve_post_(client, "/v2/models/", model, path, header_bytes, body_bytes)
               : result;
}

/* Sends an inference request whose reply has one output, and sets *rows to its rows. */
static inline enum bagserve_result bagserve_rows_(struct bagserve_client *client, const char *model,
                                                  const struct bagserve_input_ *inputs,
                                                  size_t num_inputs, struct bagserve_rows *rows)
{
    struct bagserve_output output;
    size_t count;
    enum bagserve_result result = bagserve_infer_(client, model, inputs, num_inputs);
    if (result == BAGSERVE_OK)
        result = bagserve_take_outputs_(client, &output, 1, &count);
    if (result == BAGSERVE_OK)
        *rows = output.rows;
    return result;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Pools bags in the offsets form and sets *rows to one row for each offset. A bag begins at its
 * offset in `indices` and ends at the next one. `weights`, one for each index, may be NULL. No
 * other pointer may be NULL, not even if its count is 0, because NULL means that the input is not
 * sent. */
static inline enum bagserve_result bagserve_offsets(struct bagserve_client *client,
                                                    const char *model, const int64_t *indices,
                                                    size_t num_indices, const int64_t *offsets,
                                                    size_t num_offsets, const float *weights,
                                                    struct bagserve_rows *rows)
{
    const struct bagserve_input_ inputs[] = {
        {"indices", "INT64", indices, {num_indices, 0}, 1, sizeof *indices},
        {"offsets", "INT64", offsets, {num_offsets, 0}, 1, sizeof *offsets},
        {"per_sample_weights", "FP32", weights, {num_indices, 0}, 1, sizeof *weights}};
    return bagserve_rows_(client, model, inputs, 3, rows);
}

/* Pools bags of equal length and sets *rows to one row for each row of `indices` [num_bags,
 * bag_length]. `weights` has the same shape, or is NULL. */
static inline enum bagserve_result bagserve_packed(struct bagserve_client *client,
                                                   const char *model, const int64_t *indices,
                                                   size_t num_bags, size_t bag_length,
                                                   const float *weights, struct bagserve_rows *rows)
{
    const struct bagserve_input_ inputs[] = {
        {"indices", "INT64", indices, {num_bags, bag_length}, 2, sizeof *indices},
        {"per_sample_weights", "FP32", weights, {num_bags, bag_length}, 2, sizeof *weights}};
    return bagserve_rows_(client, model, inputs, 2, rows);
}

/* Pools bags in the segments form and sets *rows to one row for each of `num_segments` bags.
 * `segment_ids` has the number of the bag of each index. `weights`, one for each index, may be
 * NULL. */
static inline enum bagserve_result bagserve_segments(struct bagserve_client *client,
                                                     const char *model, const int64_t *indices,
                                                     const int64_t *segment_ids, size_t num_indices,
                                                     int64_t num_segments, const float *weights,
                                                     struct bagserve_rows *rows)
{
    const struct bagserve_input_ inputs[] = {
        {"indices", "INT64", indices, {num_indices, 0}, 1, sizeof *indices},
        {"segment_ids", "INT64", segment_ids, {num_indices, 0}, 1, sizeof *segment_ids},
        {"num_segments", "INT64", &num_segments, {1, 0}, 1, sizeof num_segments},
        {"per_sample_weights", "FP32", weights, {num_indices, 0}, 1, sizeof *weights}};
    return bagserve_rows_(client, model, inputs, 4, rows);
}

/* Pools the bags of all features of a collection in KeyedJaggedTensor's layout. `values` has the
 * indices feature by feature in the configured order, and `lengths` [features * bags] the number of
 * indices of each bag. `outputs` has a capacity of `room` outputs, one for each feature. Sets
 * *count to their number. The rows belong to the client and are valid until its next call or
 * bagserve_close(). */
static inline enum bagserve_result
bagserve_kjt(struct bagserve_client *client, const char *model, const int64_t *values,
             size_t num_values, const int64_t *lengths, size_t num_lengths, const float *weights,
             struct bagserve_output *outputs, size_t room, size_t *count)
{
    const struct bagserve_input_ inputs[] = {
        {"values", "INT64", values, {num_values, 0}, 1, sizeof *values},
        {"lengths", "INT64", lengths, {num_lengths, 0}, 1, sizeof *lengths},
        {"weights", "FP32", weights, {num_values, 0}, 1, sizeof *weights}};
    enum bagserve_result result = bagserve_infer_(client, model, inputs, 3);
    return result == BAGSERVE_OK ? bagserve_take_outputs_(client, outputs, room, count) : result;
}

#endif
