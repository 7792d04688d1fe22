/*
 * sdr.h: messages with partial completion over unreliable links.
 *
 * The first part is source compatible with the published SDR API (names, structs, field order and types, return codes).
 * The second part, "Extensions", is ours. Memory registration is in sdr_mr.h. Manual: sdr_api(3).
 *
 * The n-th send of a queue pair lands in the n-th receive that the peer posted. Nothing is retransmitted here: the
 * receiver watches a bitmap with one bit per chunk and decides what is missing; reliability is a layer above.
 *
 * Return codes: functions that return int give SDR_SUCCESS, SDR_ERROR or SDR_RETRY; functions that return a pointer
 * give NULL on failure. After SDR_ERROR or NULL, sdr_last_error() says in words what was wrong and what to do. A null
 * pointer as an argument is an SDR_ERROR.
 *
 * Threads: every function may be called from any thread. A context runs its own progress thread; callers only poll. Two
 * threads must not use the same handle at once, and nothing may be used while another thread destroys it.
 */
#ifndef SDR_H
#define SDR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sdr_context;     /**< an open device and its progress thread */
struct sdr_qp;          /**< a queue pair: one connection to one peer */
struct sdr_send_handle; /**< a send that was started */
struct sdr_recv_handle; /**< a receive that was posted */

/** What a call returned. */
enum sdr_errcode {
    SDR_SUCCESS = 0, /**< done */
    SDR_ERROR = 1,   /**< failed, and stays wrong when repeated: sdr_last_error() says why */
    SDR_RETRY = 2    /**< not now (no resources, or nothing has come yet): the same call may succeed later */
};

/**
 * Payload bytes per packet. Headers come on top: SDR_MTU_2048 and SDR_MTU_4096 do not fit a path of 1,500-byte packets
 * in one piece; IP then cuts them into fragments, and one lost fragment loses the packet. See sdr_qp_create_ext() for
 * payloads in between.
 */
enum sdr_mtu { SDR_MTU_64, SDR_MTU_128, SDR_MTU_256, SDR_MTU_512, SDR_MTU_1024, SDR_MTU_2048, SDR_MTU_4096 };

/** How a device is opened. */
struct sdr_dev_attr {
    uint32_t num_channels; /**< channels of each queue pair: sockets, each with its own thread; 0 means 1, at most 16 */
    uint32_t log_max_qps;  /**< at most 2^this queue pairs in this context; 0 means no limit */
};

/** What a send does. */
enum sdr_wr_opcode {
    SDR_WR_WRITE,         /**< payload only */
    SDR_WR_WRITE_WITH_IMM /**< payload and a 32-bit immediate for sdr_recv_imm_get() */
};

/** Parameters of a queue pair. Both sides must agree on chunk size and MTU; sdr_qp_connect() checks. */
struct sdr_qp_attr {
    uint32_t bitmap_chunk_size_log_bytes; /**< a chunk has 2^this bytes: 1 to 64 packets of `mtu` */
    size_t max_in_flight_log_bytes;       /**< 2^this bytes in all posted messages together. One message has at most
                                               M = 2^(max_in_flight_log_bytes - max_log_num_msgs) bytes, which must be at
                                             least a chunk and at       most 2^18 packets */
    uint32_t max_log_num_msgs;            /**< 2^this messages posted (and started) at once; at most 10 */
    enum sdr_mtu mtu;                     /**< payload per packet */
    uint8_t send_enable;                  /**< non-zero: this side may send */
    uint8_t recv_enable;                  /**< non-zero: this side may receive */
    uint32_t rate_limit;                  /**< Mbit/s on the link, packet headers included; 0 means no limit */
};

/** A one-shot send. */
struct sdr_send_wr {
    enum sdr_wr_opcode opcode; /**< with or without immediate */
    uint32_t imm_value;        /**< the immediate, for SDR_WR_WRITE_WITH_IMM */
    uint32_t length;           /**< bytes; may be 0 */
    uint32_t lkey;             /**< key of the region that holds the bytes; ignored when length is 0 */
    uint64_t local_addr;       /**< address of the first byte */
    uint64_t remote_offset;    /**< where in the peer's buffer the bytes land, in chunks */
};

/** The start of a streaming send. */
struct sdr_send_start_wr {
    enum sdr_wr_opcode opcode; /**< with or without immediate */
    uint32_t imm_value;        /**< the immediate, for SDR_WR_WRITE_WITH_IMM */
};

/** One piece of a streaming send. */
struct sdr_send_continue_wr {
    uint32_t length;        /**< bytes; a multiple of the MTU unless the piece ends the message */
    uint64_t local_addr;    /**< address of the first byte */
    uint32_t lkey;          /**< key of the region that holds the bytes */
    uint64_t remote_offset; /**< where in the peer's buffer the bytes land, in chunks */
};

/** A receive. */
struct sdr_recv_wr {
    uint32_t max_length; /**< bytes of the buffer; may be 0 */
    uint32_t lkey;       /**< key of the region that holds the buffer; ignored when max_length is 0 */
    uint64_t address;    /**< address of the buffer */
};

/** State of a send; `flags` is always 0. */
struct sdr_send_status {
    uint32_t flags;
};

/**
 * Opens a device and starts its progress thread.
 *
 * `dev_name` is "udp" (the address by which this host reaches the network), "udp:ADDRESS", the name of a network
 * interface ("lo", "eth0") or an IP address of this host. Queue pairs send and receive on that address. Returns NULL
 * when there is no such device; sdr_last_error() then lists those that exist.
 */
struct sdr_context* sdr_context_create(const char* dev_name, struct sdr_dev_attr* dev_attr);

/** Stops the progress thread. SDR_ERROR, with nothing changed, while queue pairs or memory regions of the context
 * exist. */
int sdr_context_destroy(struct sdr_context* context);

/** Creates an unconnected queue pair, or returns NULL when a field of `qp_attr` is out of range or sockets cannot be
 * opened. */
struct sdr_qp* sdr_qp_create(struct sdr_context* ctx, struct sdr_qp_attr* qp_attr);

/**
 * Destroys a queue pair, connected or not. Operations in flight end: when the call returns no buffer is read or written
 * any more and all its send and receive handles, and bitmaps, are invalid.
 */
int sdr_qp_destroy(struct sdr_qp* qp);

/** Size of the block that sdr_qp_info_get() writes; the same for every queue pair of this library version. */
int sdr_qp_info_size_get(struct sdr_qp* qp, size_t* info_size);

/**
 * Writes this side's connection information to `info`. Carry it to the peer as it is, over a channel that you trust (it
 * contains the token that guards the connection), and hand it to sdr_qp_connect() there.
 */
int sdr_qp_info_get(struct sdr_qp* qp, void* info);

/**
 * Connects to the queue pair that `remote_qp_info` describes; the peer does the same with ours. Does not wait for the
 * peer. The peer must connect within 10 s (of this call, and control_timeout_ns of the first post): otherwise it counts
 * as gone. SDR_ERROR: the information is damaged or of another version, chunk size or MTU differ, neither side can send
 * to the other, or the queue pair is connected already.
 */
int sdr_qp_connect(struct sdr_qp* qp, void* remote_qp_info);

/**
 * Posts the next receive and tells the peer that it may send. Every posted receive must end with sdr_recv_complete().
 * SDR_RETRY: 2^max_log_num_msgs receives are posted, or the slot's last use is not over yet.
 * SDR_ERROR: not connected, not enabled, broken connection, longer than M, or not inside a registered region.
 */
int sdr_recv_post(struct sdr_qp* qp, struct sdr_recv_wr* wr, struct sdr_recv_handle** handle);

/**
 * The sender's immediate. SDR_RETRY until all of it is in, SDR_ERROR when the connection broke before. To be called
 * only for messages sent with SDR_WR_WRITE_WITH_IMM: packets do not say which it was, so that for others the result is
 * SDR_RETRY for ever, or 0.
 */
int sdr_recv_imm_get(struct sdr_recv_handle* handle, uint32_t* immediate);

/**
 * The chunk bitmap: chunk c is in, payload included, when bit c % 8 of byte c / 8 is set. Bits past the last chunk are
 * 0.
 *
 * The pointer stays the same until sdr_recv_complete(), so it may be read again and again without calling this
 * function, with atomic loads
 * (`__atomic_load_n(p, __ATOMIC_ACQUIRE)`) where the payload is read afterwards. `num_bytes` is that of the posted
 * length until the sender announces a shorter message (sdr_recv_length_get()), and then shrinks. Takes no lock.
 * SDR_ERROR: the handle is not valid, or the connection broke and chunks are missing (pointer and size are set all the
 * same).
 */
int sdr_recv_bitmap_get(struct sdr_recv_handle* handle, uint8_t** bitmap_bytes, size_t* bitmap_num_bytes);

/** The packets of chunk `chunk_offset`: bit i of `*bitmap` is packet i. SDR_ERROR past the last chunk. */
int sdr_recv_bitmap_chunk_expand(struct sdr_recv_handle* handle, uint32_t chunk_offset, uint64_t* bitmap);

/**
 * Ends a receive, whether all chunks are in or not. When the call returns nothing writes to the buffer any more
 * (packets that are still on the way are swallowed), the bitmap is all zero, and the handle is invalid: using it again
 * is an SDR_ERROR until it is handed out anew.
 */
int sdr_recv_complete(struct sdr_recv_handle* handle);

/**
 * Sends one message. The bytes must stay as they are until sdr_send_poll() reports completion.
 * SDR_RETRY: the peer has not posted the receive for this message yet, or 2^max_log_num_msgs sends are not polled to
 * completion. SDR_ERROR: longer than the posted buffer, not inside a registered region, not connected, not enabled,
 * broken connection.
 */
int sdr_send_post(struct sdr_qp* qp, struct sdr_send_wr* wr, struct sdr_send_handle** handle);

/** Starts a message whose pieces follow. Errors as for sdr_send_post(). */
int sdr_streaming_send_start(struct sdr_qp* qp, struct sdr_send_start_wr* wr, struct sdr_send_handle** handle);

/**
 * Queues a piece of a streaming send: at any offset, in any order, and again to retransmit it. SDR_ERROR after
 * sdr_streaming_send_end().
 */
int sdr_streaming_send_continue(struct sdr_send_handle* handle, struct sdr_send_continue_wr* wr);

/** No further piece follows. The message ends where the furthest piece ended. */
int sdr_streaming_send_end(struct sdr_send_handle* handle);

/**
 * Asks whether all of a send has left this host, so that its bytes may be changed. It says nothing about arrival.
 * SDR_SUCCESS: yes; `*completed_flag` is 1 and the handle is released: it must not be used again.
 * SDR_RETRY: not yet (a streaming send: also while it has not been ended); `*completed_flag` is 0.
 * SDR_ERROR: the handle is not valid, or the connection broke; in the latter case sdr_send_release() or
 * sdr_qp_destroy() releases it. `status` may be NULL.
 */
int sdr_send_poll(struct sdr_send_handle* handle, int* completed_flag, struct sdr_send_status* status);

/* ------------------------------------------------------------------------------------------------------------------------------------
 * Extensions. Not part of the published API. Structs start with `struct_size`, to be set to sizeof the struct by the
 * caller: later versions may append fields, and code compiled against this version goes on working.
 * ----------------------------------------------------------------------------------------------------------------------------------
 */

/** Defined when the extensions are there; counts up when some are added. */
#define SDR_FARHAUL_EXTENSIONS 1

/** Version of the library as "major.minor.patch". */
const char* sdr_version(void);

/** The name of a return code. Never NULL. */
const char* sdr_strerror(int code);

/** What went wrong in the last call of this thread that failed, in words; "" before the first. Valid until this
 * thread's next failure. */
const char* sdr_last_error(void);

/** Parameters of a queue pair beyond those of struct sdr_qp_attr. 0 in a field means its default. */
struct sdr_qp_attr_ext {
    size_t struct_size;
    uint32_t payload_bytes;     /**< per packet, 64 to 65483 (what fits a UDP datagram); default 4096 */
    uint32_t packets_per_chunk; /**< 1 to 64; default 16 */
    uint32_t max_messages;      /**< messages posted (and started) at once, 1 to 2^immediate_message_bits; default 64 */
    uint32_t reserved0;         /**< must be 0 */
    uint64_t max_message_bytes; /**< M, at most 2^immediate_packet_bits packets; default 16 MiB, or less if that is more
                                   than the packets allow */
    uint64_t rate_limit_bps;    /**< bit/s on the link, headers included; default no limit */
    uint64_t initial_rtt_ns;    /**< round trip assumed before the first measurement; default 100 ms */
    uint64_t control_timeout_ns;    /**< the peer answers nothing for so long: it is gone; default 10 s */
    uint8_t immediate_message_bits; /**< split of a packet's 32-bit immediate: message id, packet index, fragment of the
                                       user's */
    uint8_t immediate_packet_bits;  /**< immediate. All three 0 means 10 + 18 + 4; else 1..16 + 1..30 + (1, 2, 4 or 8),
                                       32 together. */
    uint8_t immediate_fragment_bits; /**< Both sides must use the same. */
    uint8_t checksum_disable;        /**< non-zero: no CRC32C over payloads; both sides must agree */
    uint8_t send_enable;             /**< non-zero: this side may send */
    uint8_t recv_enable;             /**< non-zero: this side may receive */
    uint8_t reserved1[2];            /**< must be 0 */
};

/** Like sdr_qp_create(), with all parameters. */
struct sdr_qp* sdr_qp_create_ext(struct sdr_context* ctx, const struct sdr_qp_attr_ext* attr);

/** The start of a streaming send whose length is known. */
struct sdr_send_start_ext_wr {
    size_t struct_size;
    enum sdr_wr_opcode opcode;
    uint32_t imm_value;
    uint64_t total_length; /**< bytes of the whole message: the receiver learns it with the first piece instead of at
                              the end */
};

/** Like sdr_streaming_send_start(), announcing the length at once. SDR_ERROR when it exceeds the posted buffer. */
int sdr_streaming_send_start_ext(struct sdr_qp* qp, const struct sdr_send_start_ext_wr* wr,
                                 struct sdr_send_handle** handle);

/**
 * Releases a send handle that was not polled to completion. What has not left this host is dropped; when the call
 * returns the bytes may be changed. The message keeps its place in the order.
 */
int sdr_send_release(struct sdr_send_handle* handle);

/** Length of the message that lands in this receive: SDR_RETRY until it is known (announced, or all posted bytes are
 * in). */
int sdr_recv_length_get(struct sdr_recv_handle* handle, uint64_t* length);

/**
 * How far a receive is: `*chunks_in` of `*chunks` chunks are in; all of the message when they are equal. Takes no lock.
 * Errors as for sdr_recv_bitmap_get().
 */
int sdr_recv_progress_get(struct sdr_recv_handle* handle, uint32_t* chunks_in, uint32_t* chunks);

/** Life of a queue pair. */
enum sdr_qp_state {
    SDR_QP_CREATED,   /**< waits for sdr_qp_connect() */
    SDR_QP_CONNECTED, /**< works, as far as this side knows */
    SDR_QP_BROKEN     /**< the peer is gone or the network refused: posts fail, nothing more arrives; only destroy it */
};

/** State, and for SDR_QP_BROKEN the reason: up to `text_size` bytes, always terminated, "" otherwise. `text` may be
 * NULL. */
int sdr_qp_state_get(struct sdr_qp* qp, enum sdr_qp_state* state, char* text, size_t text_size);

/** Bytes that the peer posted for the next send: SDR_RETRY, and 0, while nothing is posted. */
int sdr_qp_send_capacity_get(struct sdr_qp* qp, uint64_t* bytes);

/** Counters of a queue pair since its creation. */
struct sdr_qp_stats {
    size_t struct_size;
    uint64_t packets_sent;
    uint64_t bytes_sent;            /**< payload */
    uint64_t packets_accepted;      /**< arrived and placed */
    uint64_t packets_duplicate;     /**< arrived again */
    uint64_t packets_stale;         /**< for a receive that was completed already: swallowed */
    uint64_t packets_out_of_bounds; /**< beyond the posted buffer: dropped */
    uint64_t packets_rejected;      /**< foreign, of another connection, or damaged: dropped by the transport */
    uint64_t control_sent;          /**< control datagrams */
    uint64_t control_received;
    uint64_t control_malformed; /**< dropped */
    uint64_t control_retransmissions;
    uint64_t round_trip_ns; /**< of control messages, smoothed */
};

/** Reads the counters. All 0 before sdr_qp_connect(). */
int sdr_qp_stats_get(struct sdr_qp* qp, struct sdr_qp_stats* stats);

#ifdef __cplusplus
}
#endif

#endif /* SDR_H */
