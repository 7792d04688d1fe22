/* Two ends of a client that makes the calls of the published API in the order in which its benchmark makes them. */
#ifndef PUBLISHED_CLIENT_H
#define PUBLISHED_CLIENT_H

#include <stddef.h>
#include <stdint.h>

struct sdr_context;
struct sdr_mr;

#ifdef __cplusplus
extern "C" {
#endif

struct published_options {
    size_t message_bytes;
    size_t in_flight;
    size_t iterations;
    size_t channels;
    size_t chunk_bytes;
    size_t mtu_bytes;
};

/* Each runs one end over `fd`, a connected stream socket, until all messages are through. 0, or 1 with `error` filled
 * in. */
int published_server(const struct published_options* options, int fd, char* error, size_t error_size);
int published_client(const struct published_options* options, int fd, char* error, size_t error_size);

/* sdr_mr_reg() with flags that C++ could not pass. */
struct sdr_mr* register_with_flags(struct sdr_context* context, void* address, size_t length, unsigned flags);

#ifdef __cplusplus
}
#endif

#endif
