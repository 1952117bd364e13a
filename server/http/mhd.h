/* libmicrohttpd (below: the library), which parses HTTP and writes replies. Only mhd.c knows how it
 * wants to be called, and what it gets wrong.
 *
 * All functions run on the loop's thread. */
#pragma once

#include "server.h"

/* The memory of a connection. A head of BAG_HTTP_MAX_HEAD_BYTES must fit beside the head of the
 * reply, and a body is read in pieces of half of it. The library clears one and a half times as
 * much after every request, which costs the caches of many connections. On a Zen 4, 8 KiB take 0.96
 * of the CPU time of a small request at 64 connections and 0.93 at 300, and 1.07 with bodies of 205
 * KB. They are too little for a token of 8,000 bytes. 11 and 12 KiB, which are enough, gain 0 to 2
 * %. MHD_OPTION_CONNECTION_MEMORY_INCREMENT cannot make the pieces larger: 0.9.75 lets a piece grow
 * by an eighth of the rest of the memory, and only if that is a KiB. */
#define BAG_HTTP_CONNECTION_BYTES (16 << 10)

/* Starts the library for a server whose other members are initialised. It has no thread and no
 * listening socket. Returns false and sets *problem (SYSTEM) if it cannot start. */
bool bag_http_mhd_start(struct bag_http_server *server, struct bag_problem *problem);

/* Stops the library, which closes all its connections. */
void bag_http_mhd_stop(struct bag_http_server *server);

/* Returns the descriptor that is readable when the library must be called, or -1. */
int bag_http_mhd_epoll_fd(struct bag_http_server *server);

/* Passes an ADMITTED connection to the library. If the library cannot take the socket, it closes
 * it, and the connection stays ADMITTED. For a Unix-domain socket no address makes the library
 * leave out two failing setsockopt() calls a reply (CONTRIBUTING.md, Reports for upstream). */
void bag_http_mhd_add(struct bag_http_server *server, struct bag_http_connection *connection);

/* Runs some rounds of the library. In each it reads a part of a body. Returns true if it must be
 * called again without an event, in *timeout_ms. */
bool bag_http_mhd_run(struct bag_http_server *server, uint64_t *timeout_ms);
