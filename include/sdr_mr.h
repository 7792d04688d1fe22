/*
 * sdr_mr.h: memory regions, from which sends read and into which receives write.
 *
 * Source compatible with the published SDR API. A key names one region of one context; posts check that key, address
 * and length lie inside it. Keys of regions that are gone are not handed out again before four thousand million others
 * were.
 */
#ifndef SDR_MR_H
#define SDR_MR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sdr_context;
struct sdr_mr; /**< a registered range of memory */

/** What a peer may do with a region. */
enum sdr_access_flags {
    SDR_ACCESS_REMOTE_WRITE = 0 /**< a peer's sends may land in it, once it is posted as a receive */
};

/**
 * Registers [addr, addr + length). length may be 0 (then addr may be NULL); regions may overlap. The memory stays the
 * caller's. Returns NULL when the range wraps around the address space or an argument is wrong: sdr_last_error() says
 * which.
 */
struct sdr_mr* sdr_mr_reg(struct sdr_context* ctx, void* addr, size_t length, enum sdr_access_flags flags);

/**
 * Ends a registration. SDR_ERROR, with nothing changed, while a receive in the region is not completed or a send from
 * it is not polled to completion or released: end those, or destroy their queue pair, first.
 */
int sdr_mr_dereg(struct sdr_mr* mr);

/** The key for posting from this region; never 0. */
int sdr_mr_lkey_get(struct sdr_mr* mr, uint32_t* lkey);

/** The key that would be told to a peer. Matching is by order here, so that no call asks for it; it is unique all the
 * same. */
int sdr_mr_rkey_get(struct sdr_mr* mr, uint32_t* rkey);

#ifdef __cplusplus
}
#endif

#endif /* SDR_MR_H */
