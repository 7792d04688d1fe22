/*
 * pingpong: a message goes to the other side and back, many times, and what gets lost on the way is repaired.
 *
 * Shows the whole life of the C API: context, queue pair, exchange of the connection information over a TCP socket, connection, registered
 * memory, receives posted ahead, a streaming send, the bitmap, completion. The API itself does not retransmit: here the receiver looks at
 * the bitmap and asks for the missing chunks over the TCP socket. That is all that a (simple) reliability layer is.
 *
 * Build:  cc -std=c11 pingpong.c -o pingpong $(pkg-config --cflags --libs farhaul-sdr)
 * Run:    ./pingpong udp 18530              on the first host (device, TCP port; port 0 takes any free one)
 *         ./pingpong udp 18530 first-host   on the second
 */
#define _POSIX_C_SOURCE 200809L

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <sdr.h>
#include <sdr_mr.h>

#define MESSAGE_BYTES 200000u /* not a multiple of anything: the last packet and the last chunk are short */
#define CHUNK_LOG 14u
#define CHUNK_BYTES (1u << CHUNK_LOG)
#define CHUNKS ((MESSAGE_BYTES + CHUNK_BYTES - 1) / CHUNK_BYTES)
#define ROUNDS 100
#define PATIENCE_MS 50.0 /* how long a receiver waits before it asks for what is missing */
#define ATTEMPTS 200

struct side {
    int socket;
    struct sdr_context *context;
    struct sdr_qp *qp;
    struct sdr_mr *mr;
    uint32_t lkey;
    unsigned char *memory; /* what we send, and behind it what we receive */
    struct sdr_recv_handle *receive;
    unsigned long repaired;
};

static void die(const char *what, const char *why) {
    fprintf(stderr, "pingpong: %s: %s\n", what, why);
    exit(1);
}

static void check(int code, const char *what) {
    if (code == SDR_ERROR) die(what, sdr_last_error());
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void write_all(int fd, const void *data, size_t size) {
    const char *bytes = data;
    while (size > 0) {
        const ssize_t n = write(fd, bytes, size);
        if (n <= 0) die("TCP", "the other side is gone");
        bytes += n;
        size -= (size_t)n;
    }
}

static void read_all(int fd, void *data, size_t size) {
    char *bytes = data;
    while (size > 0) {
        const ssize_t n = read(fd, bytes, size);
        if (n <= 0) die("TCP", "the other side is gone");
        bytes += n;
        size -= (size_t)n;
    }
}

/* --- the TCP socket that carries the connection information and the requests for missing chunks --- */

static int tcp_connect(const char *host, const char *port) {
    struct addrinfo hints;
    struct addrinfo *list = NULL;
    int fd = -1;
    memset(&hints, 0, sizeof(hints));
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &hints, &list) != 0) die(host, "no such host");
    for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) die(host, "cannot connect; is the first side running?");
    return fd;
}

static int tcp_accept(const char *port) {
    struct sockaddr_in address;
    socklen_t size = sizeof(address);
    const int on = 1;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    int fd;
    memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(port));
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        die(port, "cannot listen on this port");
    printf("listening on port %u\n", ntohs(address.sin_port));
    fflush(stdout);
    fd = accept(listener, NULL, NULL);
    if (fd < 0) die(port, "nobody came");
    close(listener);
    return fd;
}

/* --- set-up --- */

static void open_side(struct side *side, const char *device) {
    struct sdr_dev_attr device_attr;
    struct sdr_qp_attr attr;
    uint64_t sizes[2];
    size_t size = 0;
    void *ours;
    void *theirs;

    memset(&device_attr, 0, sizeof(device_attr));
    device_attr.num_channels = 1;
    side->context = sdr_context_create(device, &device_attr);
    if (side->context == NULL) die(device, sdr_last_error());

    memset(&attr, 0, sizeof(attr));
    attr.mtu = SDR_MTU_1024;
    attr.bitmap_chunk_size_log_bytes = CHUNK_LOG; /* 16 packets */
    attr.max_log_num_msgs = 2;                    /* 4 messages posted at once */
    attr.max_in_flight_log_bytes = 20;            /* of 256 KiB each */
    attr.send_enable = 1;
    attr.recv_enable = 1;
    side->qp = sdr_qp_create(side->context, &attr);
    if (side->qp == NULL) die("queue pair", sdr_last_error());

    check(sdr_qp_info_size_get(side->qp, &size), "size of the information");
    ours = calloc(1, size);
    if (ours == NULL) die("information", "out of memory");
    check(sdr_qp_info_get(side->qp, ours), "information");
    sizes[0] = size;
    write_all(side->socket, &sizes[0], sizeof(sizes[0]));
    read_all(side->socket, &sizes[1], sizeof(sizes[1]));
    if (sizes[1] != sizes[0]) die("information", "the other side runs another version");
    theirs = calloc(1, size);
    if (theirs == NULL) die("information", "out of memory");
    write_all(side->socket, ours, size);
    read_all(side->socket, theirs, size);
    check(sdr_qp_connect(side->qp, theirs), "connect");
    free(ours);
    free(theirs);

    side->memory = calloc(2, MESSAGE_BYTES);
    if (side->memory == NULL) die("memory", "out of memory");
    side->mr = sdr_mr_reg(side->context, side->memory, 2 * (size_t)MESSAGE_BYTES, SDR_ACCESS_REMOTE_WRITE);
    if (side->mr == NULL) die("memory", sdr_last_error());
    check(sdr_mr_lkey_get(side->mr, &side->lkey), "key");
}

static void close_side(struct side *side) {
    check(sdr_qp_destroy(side->qp), "queue pair");
    check(sdr_mr_dereg(side->mr), "memory");
    check(sdr_context_destroy(side->context), "context");
    free(side->memory);
    close(side->socket);
}

/* --- one message --- */

static void post_receive(struct side *side) {
    struct sdr_recv_wr wr;
    int code;
    wr.max_length = MESSAGE_BYTES;
    wr.lkey = side->lkey;
    wr.address = (uint64_t)(uintptr_t)(side->memory + MESSAGE_BYTES);
    do check(code = sdr_recv_post(side->qp, &wr, &side->receive), "post a receive");
    while (code == SDR_RETRY);
}

static void queue_chunk(struct side *side, struct sdr_send_handle *send, uint32_t chunk) {
    struct sdr_send_continue_wr wr;
    const uint32_t at = chunk * CHUNK_BYTES;
    wr.length = MESSAGE_BYTES - at < CHUNK_BYTES ? MESSAGE_BYTES - at : CHUNK_BYTES;
    wr.local_addr = (uint64_t)(uintptr_t)(side->memory + at);
    wr.lkey = side->lkey;
    wr.remote_offset = chunk;
    check(sdr_streaming_send_continue(send, &wr), "queue a chunk");
}

static void send_message(struct side *side) {
    struct sdr_send_start_wr start;
    struct sdr_send_handle *send = NULL;
    uint32_t missing;
    int done = 0;
    int code;
    memset(&start, 0, sizeof(start));
    start.opcode = SDR_WR_WRITE;
    do check(code = sdr_streaming_send_start(side->qp, &start, &send), "start a send");
    while (code == SDR_RETRY); /* the other side has not posted its receive yet */
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) queue_chunk(side, send, chunk);
    /* The receiver answers with the number of missing chunks and which they are, until that number is 0. */
    for (read_all(side->socket, &missing, sizeof(missing)); missing > 0; read_all(side->socket, &missing, sizeof(missing))) {
        for (; missing > 0; missing--) {
            uint32_t chunk;
            read_all(side->socket, &chunk, sizeof(chunk));
            if (chunk >= CHUNKS) die("TCP", "the other side asks for a chunk that is not there");
            queue_chunk(side, send, chunk);
            side->repaired++;
        }
    }
    check(sdr_streaming_send_end(send), "end a send");
    while (!done) check(sdr_send_poll(send, &done, NULL), "poll a send");
}

static uint32_t missing_chunks(const uint8_t *bitmap, uint32_t *list) {
    uint32_t count = 0;
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        if ((__atomic_load_n(&bitmap[chunk / 8], __ATOMIC_ACQUIRE) >> (chunk % 8) & 1) == 0) list[count++] = chunk;
    return count;
}

static void receive_message(struct side *side) {
    uint8_t *bitmap = NULL;
    size_t bytes = 0;
    uint32_t list[CHUNKS];
    uint32_t count = CHUNKS;
    for (int attempt = 0; count > 0; attempt++) {
        const double start = now_ms();
        if (attempt == ATTEMPTS) die("receive", "chunks do not arrive, however often they are sent");
        do {
            check(sdr_recv_bitmap_get(side->receive, &bitmap, &bytes), "bitmap");
            count = missing_chunks(bitmap, list);
        } while (count > 0 && now_ms() - start < PATIENCE_MS);
        write_all(side->socket, &count, sizeof(count));
        write_all(side->socket, list, count * sizeof(list[0]));
    }
    check(sdr_recv_complete(side->receive), "complete a receive");
}

int main(int argc, char **argv) {
    struct side side;
    const int on = 1;
    const int is_client = argc == 4;
    double start;
    double elapsed;
    char done;
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: %s DEVICE PORT        (first side)\n       %s DEVICE PORT HOST   (second side)\n", argv[0], argv[0]);
        return 2;
    }
    memset(&side, 0, sizeof(side));
    side.socket = is_client ? tcp_connect(argv[3], argv[2]) : tcp_accept(argv[2]);
    setsockopt(side.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* its messages are small, and waited for */
    open_side(&side, argv[1]);

    post_receive(&side);
    start = now_ms();
    for (int round = 0; round < ROUNDS; round++) {
        if (is_client) {
            for (uint32_t i = 0; i < MESSAGE_BYTES; i++) side.memory[i] = (unsigned char)(i * 7 + (unsigned)round);
            send_message(&side);
            receive_message(&side);
            if (memcmp(side.memory, side.memory + MESSAGE_BYTES, MESSAGE_BYTES) != 0) die("check", "what came back differs");
            if (round + 1 < ROUNDS) post_receive(&side);
        } else {
            receive_message(&side);
            memcpy(side.memory, side.memory + MESSAGE_BYTES, MESSAGE_BYTES);
            if (round + 1 < ROUNDS) post_receive(&side); /* before the answer: the next message can start at once */
            send_message(&side);
        }
    }
    elapsed = now_ms() - start;
    /* Destroying a queue pair ends the connection for both: wait until the other side is done with it, too. */
    write_all(side.socket, "x", 1);
    read_all(side.socket, &done, 1);
    printf("%s: %d rounds of %u bytes, %.3f ms each, %lu chunks sent again\n", is_client ? "client" : "server", ROUNDS, MESSAGE_BYTES,
           elapsed / ROUNDS, side.repaired);
    close_side(&side);
    return 0;
}
