/* See published_client.h. Only names of the published API are used here, with zeroed structs and nothing that is ours.
 */
#include "published_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sdr.h>
#include <sdr_mr.h>

struct end {
    const struct published_options* options;
    int fd;
    int sends;
    struct sdr_context* context;
    struct sdr_qp* qp;
    struct sdr_mr* mr;
    uint32_t lkey;
    uint64_t* memory;
    char* error;
    size_t error_size;
};

static int failed(struct end* end, const char* what) {
    snprintf(end->error, end->error_size, "%s: %s", end->sends ? "client" : "server", what);
    return 1;
}

static int log2_up(size_t value) {
    int log = 0;
    while (((size_t)1 << log) < value) log++;
    return log;
}

static int put(int fd, const void* data, size_t size) {
    const char* bytes = data;
    while (size > 0) {
        const ssize_t n = write(fd, bytes, size);
        if (n <= 0) return 1;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

static int get(int fd, void* data, size_t size) {
    char* bytes = data;
    while (size > 0) {
        const ssize_t n = read(fd, bytes, size);
        if (n <= 0) return 1;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

static uint64_t value_of(size_t iteration, size_t index) { return 0xDEADBEAFu + iteration + index; }

static int expired(const struct timespec* start) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return now.tv_sec - start->tv_sec > 60;
}

/* Context, queue pair, exchange of the information, connection; the buffers are registered only then. */
static int set_up(struct end* end) {
    const struct published_options* o = end->options;
    struct sdr_dev_attr dev_attr;
    struct sdr_qp_attr qp_attr;
    size_t local_size = 0;
    size_t remote_size = 0;
    void* local;
    void* remote;

    memset(&dev_attr, 0, sizeof(dev_attr));
    dev_attr.num_channels = (uint32_t)o->channels;
    end->context = sdr_context_create("lo", &dev_attr);
    if (!end->context) return failed(end, "no context");

    memset(&qp_attr, 0, sizeof(qp_attr));
    qp_attr.bitmap_chunk_size_log_bytes = (uint32_t)log2_up(o->chunk_bytes);
    qp_attr.max_in_flight_log_bytes = (size_t)log2_up(o->in_flight * o->message_bytes);
    qp_attr.max_log_num_msgs = (uint32_t)log2_up(o->in_flight);
    qp_attr.mtu = (enum sdr_mtu)(log2_up(o->mtu_bytes) - 6);
    qp_attr.send_enable = end->sends ? 1 : 0;
    qp_attr.recv_enable = !qp_attr.send_enable;
    end->qp = sdr_qp_create(end->context, &qp_attr);
    if (!end->qp) return failed(end, "no queue pair");

    if (sdr_qp_info_size_get(end->qp, &local_size)) return failed(end, "no size of the information");
    local = malloc(local_size);
    if (!local || sdr_qp_info_get(end->qp, local)) return failed(end, "no information");
    if (put(end->fd, &local_size, sizeof(local_size)) || get(end->fd, &remote_size, sizeof(remote_size)))
        return failed(end, "sizes not exchanged");
    remote = malloc(remote_size);
    if (!remote || put(end->fd, local, local_size) || get(end->fd, remote, remote_size))
        return failed(end, "information not exchanged");
    if (sdr_qp_connect(end->qp, remote)) return failed(end, "not connected");
    free(local);
    free(remote);

    end->memory = calloc(o->in_flight, o->message_bytes);
    if (!end->memory) return failed(end, "no memory");
    end->mr = sdr_mr_reg(end->context, end->memory, o->in_flight * o->message_bytes, SDR_ACCESS_REMOTE_WRITE);
    if (!end->mr || sdr_mr_lkey_get(end->mr, &end->lkey)) return failed(end, "memory not registered");
    return 0;
}

static int tear_down(struct end* end) {
    int status = 0;
    /* In this order: the memory is freed while it is still registered, but no longer in use. */
    free(end->memory);
    if (end->mr && sdr_mr_dereg(end->mr)) status = failed(end, "memory not deregistered");
    if (end->qp && sdr_qp_destroy(end->qp)) status = failed(end, "queue pair not destroyed");
    if (end->context && sdr_context_destroy(end->context)) status = failed(end, "context not destroyed");
    return status;
}

static int receive_all(struct end* end, struct sdr_recv_wr* wrs, struct sdr_recv_handle** handles) {
    const struct published_options* o = end->options;
    const size_t slots = o->in_flight < o->iterations ? o->in_flight : o->iterations;
    const size_t chunks = o->message_bytes / o->chunk_bytes;
    const uint32_t cts = 0xDEADBEAFu;
    size_t started;
    size_t completed = 0;
    struct timespec start;
    timespec_get(&start, TIME_UTC);

    for (started = 0; started < slots; started++) {
        wrs[started].max_length = (uint32_t)o->message_bytes;
        wrs[started].lkey = end->lkey;
        wrs[started].address = (uint64_t)(uintptr_t)end->memory + started * o->message_bytes;
        if (sdr_recv_post(end->qp, &wrs[started], &handles[started])) return failed(end, "receive not posted ahead");
    }
    if (put(end->fd, &cts, sizeof(cts))) return failed(end, "start not signalled");

    while (completed < o->iterations) {
        const size_t slot = completed % slots;
        const uint64_t* words = end->memory + slot * (o->message_bytes / sizeof(uint64_t));
        uint8_t* bitmap = NULL;
        size_t bitmap_bytes = 0;
        uint32_t imm = 0;
        size_t i;
        uint32_t ack;
        int ret;
        if (expired(&start)) return failed(end, "a message did not arrive");
        ret = sdr_recv_imm_get(handles[slot], &imm);
        if (ret == SDR_RETRY) continue;
        if (ret == SDR_ERROR) return failed(end, "no immediate");
        if (imm != 0xDEADBEAFu + (uint32_t)completed) return failed(end, "wrong immediate");
        if (sdr_recv_bitmap_get(handles[slot], &bitmap, &bitmap_bytes)) return failed(end, "no bitmap");
        if (bitmap_bytes != (chunks + 7) / 8) return failed(end, "wrong size of the bitmap");
        /* A bit per chunk. (Chunks are a multiple of 8 here, so that every byte must be full.) */
        for (i = 0; i < bitmap_bytes; i++)
            if (__atomic_load_n(&bitmap[i], __ATOMIC_ACQUIRE) != 0xff) break;
        if (i < bitmap_bytes) continue;
        if (sdr_recv_complete(handles[slot])) return failed(end, "receive not completed");
        for (i = 0; i < o->message_bytes / sizeof(uint64_t); i++)
            if (words[i] != value_of(completed, i)) return failed(end, "wrong payload");
        completed++;
        if (started < o->iterations) {
            do ret = sdr_recv_post(end->qp, &wrs[slot], &handles[slot]);
            while (ret == SDR_RETRY);
            if (ret) return failed(end, "receive not posted again");
            started++;
        }
        ack = 0xDEADBEAFu + (uint32_t)completed;
        if (put(end->fd, &ack, sizeof(ack))) return failed(end, "acknowledgement not sent");
    }
    return 0;
}

static int start_one(struct end* end, struct sdr_send_wr* wr, struct sdr_send_handle** handle, size_t iteration) {
    const size_t words = end->options->message_bytes / sizeof(uint64_t);
    uint64_t* to = (uint64_t*)(uintptr_t)wr->local_addr;
    size_t i;
    int ret;
    for (i = 0; i < words; i++) to[i] = value_of(iteration, i);
    wr->imm_value = (uint32_t)iteration + 0xDEADBEAFu;
    while ((ret = sdr_send_post(end->qp, wr, handle)))
        if (ret == SDR_ERROR) return failed(end, "send not posted");
    return 0;
}

static int send_all(struct end* end, struct sdr_send_wr* wrs, struct sdr_send_handle** handles) {
    const struct published_options* o = end->options;
    const size_t slots = o->in_flight < o->iterations ? o->in_flight : o->iterations;
    size_t started;
    size_t completed = 0;
    uint32_t cts = 0;
    if (get(end->fd, &cts, sizeof(cts)) || cts != 0xDEADBEAFu) return failed(end, "no start");
    for (started = 0; started < slots; started++) {
        wrs[started].local_addr = (uint64_t)(uintptr_t)end->memory + started * o->message_bytes;
        wrs[started].remote_offset = 0;
        wrs[started].length = (uint32_t)o->message_bytes;
        wrs[started].lkey = end->lkey;
        wrs[started].opcode = SDR_WR_WRITE_WITH_IMM;
        if (start_one(end, &wrs[started], &handles[started], started)) return 1;
    }
    while (completed < o->iterations) {
        const size_t slot = completed % slots;
        int done = 0;
        uint32_t ack = 0;
        if (sdr_send_poll(handles[slot], &done, NULL) == SDR_ERROR) return failed(end, "send not polled");
        if (!done) continue;
        if (get(end->fd, &ack, sizeof(ack))) return failed(end, "no acknowledgement");
        completed++;
        if (ack != 0xDEADBEAFu + (uint32_t)completed) return failed(end, "wrong acknowledgement");
        if (started < o->iterations) {
            if (start_one(end, &wrs[slot], &handles[slot], started)) return 1;
            started++;
        }
    }
    return 0;
}

static int run(struct end* end) {
    int status = set_up(end);
    if (!status) {
        const size_t n = end->options->in_flight;
        void* wrs = calloc(n, end->sends ? sizeof(struct sdr_send_wr) : sizeof(struct sdr_recv_wr));
        void* handles = calloc(n, sizeof(void*));
        if (!wrs || !handles)
            status = failed(end, "no memory");
        else
            status = end->sends ? send_all(end, wrs, handles) : receive_all(end, wrs, handles);
        free(wrs);
        free(handles);
    }
    if (status) {
        /* What went wrong first is what counts; the handles still in flight end with the queue pair. */
        if (end->qp) sdr_qp_destroy(end->qp);
        if (end->mr) sdr_mr_dereg(end->mr);
        if (end->context) sdr_context_destroy(end->context);
        free(end->memory);
        return status;
    }
    return tear_down(end);
}

int published_server(const struct published_options* options, int fd, char* error, size_t error_size) {
    struct end end = {.options = options, .fd = fd, .sends = 0, .error = error, .error_size = error_size};
    return run(&end);
}

int published_client(const struct published_options* options, int fd, char* error, size_t error_size) {
    struct end end = {.options = options, .fd = fd, .sends = 1, .error = error, .error_size = error_size};
    return run(&end);
}

struct sdr_mr* register_with_flags(struct sdr_context* context, void* address, size_t length, unsigned flags) {
    return sdr_mr_reg(context, address, length, (enum sdr_access_flags)flags);
}
