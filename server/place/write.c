/* The files of a placement: a configuration for each node and one for the front, the map for
 * HAProxy, and manifests for Kubernetes. Each appears whole or not at all. */
#include "place.h"
#include "server/system/files.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the nodes of the manifests are. */
#define KUBERNETES_ADDRESS "http://bagserve-node-{index}.bagserve-node:8000"

/* Beside the tables a node needs 5 % more, and so much for requests and replies in flight. */
#define REQUEST_MIB 1024

/* ---- files ----------------------------------------------------------------------------------- */

static bool reject(const char *path, const char *what, int error, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE, "%s cannot be %s: %s", path, what,
                           strerror(error));
}

/* Under another name first. */
static bool write_whole(const char *path, const char *partial, const char *text,
                        struct bag_problem *problem)
{
    const struct bag_disk *disk = &bag_system_disk;
    int file, error = disk->remove(NULL, partial);
    if (error == 0 || error == ENOENT)
        error = disk->open(NULL, partial, true, &file);
    if (error != 0)
        return reject(partial, "written", error, problem);
    error = disk->write(NULL, file, text, strlen(text), 0);
    if (error == 0)
        error = disk->sync(NULL, file);
    disk->close(NULL, file);
    if (error == 0)
        error = disk->rename(NULL, partial, path);
    return error == 0 || reject(path, "written", error, problem);
}

static bool write_file(const char *folder, const char *name, const char *text,
                       struct bag_problem *problem)
{
    char *path = NULL, *partial = NULL;
    bool ok = (asprintf(&path, "%s/%s", folder, name) >= 0 &&
               asprintf(&partial, "%s/.%s.partial", folder, name) >= 0) ||
              bag_problem_no_memory(problem);
    ok = ok && write_whole(path, partial, text, problem);
    free(partial);
    free(path);
    return ok;
}

static bool make_folder(const char *folder, struct bag_problem *problem)
{
    int error = bag_system_disk.make_folder(NULL, folder);
    return error == 0 || reject(folder, "made", error, problem);
}

/* Nodes that the placement before had, and this one has not. */
static bool remove_others(const char *folder, uint32_t first, struct bag_problem *problem)
{
    for (uint32_t node = first; node < BAG_PLACE_MAX_NODES; node++) {
        char *path = NULL;
        if (asprintf(&path, "%s/node-%u.json", folder, node) < 0)
            return bag_problem_no_memory(problem);
        int error = bag_system_disk.remove(NULL, path);
        bool ok = error == 0 || error == ENOENT || reject(path, "removed", error, problem);
        free(path);
        if (!ok || error == ENOENT)
            return ok;
    }
    return true;
}

/* ---- configurations -------------------------------------------------------------------------- */

/* Takes over the text; NULL: there was no memory for it. */
static bool write_owned(const char *folder, const char *name, char *text,
                        struct bag_problem *problem)
{
    bool ok = text ? write_file(folder, name, text, problem) : bag_problem_no_memory(problem);
    free(text);
    return ok;
}

static bool write_nodes(const struct bag_divided *divided, uint32_t num_nodes, const char *folder,
                        const char *address, struct bag_problem *problem)
{
    char name[40];
    for (uint32_t node = 0; node < num_nodes; node++) {
        snprintf(name, sizeof name, "node-%u.json", node);
        if (!write_owned(folder, name, bag_divided_node(divided, node), problem))
            return false;
    }
    return remove_others(folder, num_nodes, problem) &&
           write_owned(folder, "front.json", bag_divided_front(divided, address), problem);
}

/* ---- HAProxy and Kubernetes ------------------------------------------------------------------ */

/* A line for each model: the node that has all of it and projects nothing, or the front. */
static bool write_map(const struct bag_place *place, const char *folder,
                      struct bag_problem *problem)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < place->placement.num_items; i++) {
        const struct bag_place_item *item = &place->placement.items[i];
        const struct bag_model_config *model = bag_config_find_model(&place->config, item->name);
        if (item->parts == 1 && !(model->projection && *model->projection))
            fprintf(stream, "%s node-%u\n", item->name, item->nodes[0]);
        else
            fprintf(stream, "%s front\n", item->name);
    }
    for (size_t i = 0; i < place->config.num_models; i++) {
        if (!bag_place_is_table(&place->config.models[i]))
            fprintf(stream, "%s front\n", place->config.models[i].name);
    }
    bool ok = (fclose(stream) == 0 && text) || bag_problem_no_memory(problem);
    ok = ok && write_file(folder, "haproxy.map", text, problem);
    free(text);
    return ok;
}

static uint64_t fullest_bytes(const struct bag_placement *placement)
{
    uint64_t bytes = 0;
    for (uint32_t node = 0; node < placement->num_nodes; node++)
        bytes = placement->nodes[node].bytes > bytes ? placement->nodes[node].bytes : bytes;
    return bytes;
}

/* What of the manifests depends on the placement: how many nodes, with how much memory, and the
 * configurations. */
static bool write_kustomization(const struct bag_placement *placement, const char *folder,
                                struct bag_problem *problem)
{
    uint64_t mib = fullest_bytes(placement) / 20 * 21 / 1048576 + REQUEST_MIB;
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream)
        return bag_problem_no_memory(problem);
    fprintf(
        stream,
        "# Written by bagserve place, which writes it again: changes belong in an overlay.\n"
        "apiVersion: kustomize.config.k8s.io/v1beta1\n"
        "kind: Kustomization\n"
        "resources: [nodes.yaml, front.yaml]\n"
        "replicas:\n"
        "  - {name: bagserve-node, count: %u}\n"
        "patches:\n"
        "  - target: {kind: StatefulSet, name: bagserve-node}\n"
        "    patch: |\n"
        "      - {op: replace, path: /spec/template/spec/containers/0/resources/requests/memory,"
        " value: %lluMi}\n"
        "      - {op: replace, path: /spec/template/spec/containers/0/resources/limits/memory,"
        " value: %lluMi}\n"
        "configMapGenerator:\n"
        "  - name: bagserve-placement\n"
        "    files:\n"
        "      - front.json\n",
        placement->num_nodes, (unsigned long long)mib, (unsigned long long)mib);
    for (uint32_t node = 0; node < placement->num_nodes; node++)
        fprintf(stream, "      - node-%u.json\n", node);
    bool ok = (fclose(stream) == 0 && text) || bag_problem_no_memory(problem);
    ok = ok && write_file(folder, "kustomization.yaml", text, problem);
    free(text);
    return ok;
}

static bool write_kubernetes(const struct bag_place *place, const struct bag_divided *divided,
                             const char *folder, struct bag_problem *problem)
{
    char *below = NULL;
    if (asprintf(&below, "%s/kubernetes", folder) < 0)
        return bag_problem_no_memory(problem);
    bool ok =
        make_folder(below, problem) &&
        write_nodes(divided, place->placement.num_nodes, below, KUBERNETES_ADDRESS, problem) &&
        write_kustomization(&place->placement, below, problem);
    for (const struct bag_embedded *file = bag_place_manifests; ok && file->name; file++)
        ok = write_file(below, file->name, file->text, problem);
    free(below);
    return ok;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* The tables as configurations name them; NULL without memory. */
static struct bag_placed *list_placed(const struct bag_place *place)
{
    size_t count = place->placement.num_items;
    struct bag_placed *list = calloc(count, sizeof *list);
    for (size_t i = 0; list && i < count; i++) {
        const struct bag_place_item *item = &place->placement.items[i];
        list[i] = (struct bag_placed){item->name, bag_part_way_names[place->ways[i]], item->nodes,
                                      item->parts};
    }
    return list;
}

static bool write_all(const struct bag_place *place, const struct bag_divided *divided,
                      const char *folder, struct bag_problem *problem)
{
    return make_folder(folder, problem) &&
           write_nodes(divided, place->placement.num_nodes, folder, place->address, problem) &&
           write_map(place, folder, problem) && write_kubernetes(place, divided, folder, problem);
}

bool bag_place_write(const struct bag_place *place, const char *folder, struct bag_problem *problem)
{
    struct bag_divided divided = {0};
    struct bag_placed *placed = list_placed(place);
    char *copy = strdup(place->path), *base = copy ? realpath(dirname(copy), NULL) : NULL;
    bool ok = (placed && base) || bag_problem_no_memory(problem);
    ok = ok &&
         bag_divided_init(&divided, place->text, place->text_bytes, base, placed,
                          place->placement.num_items, problem) &&
         write_all(place, &divided, folder, problem);
    bag_divided_free(&divided);
    free(base);
    free(copy);
    free(placed);
    return ok;
}
