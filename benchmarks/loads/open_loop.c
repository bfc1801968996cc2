/* Sends HTTP/1.1 requests at random times, whether or not earlier ones were answered.

       open_loop PORT RATE SECONDS CONNECTIONS SEED REQUEST_FILE BODY_BYTES

   Arrivals are a Poisson process of RATE requests a second, drawn from SEED. Each request is sent
   as it is in REQUEST_FILE, over one of CONNECTIONS keep-alive connections to 127.0.0.1, which
   carry one request at a time and take turns. A request that is due while none is free waits.

       due ---> a connection is free, the request is sent ---> its response is complete
       '------------------------- latency ----------------------------------------------'

   So a stall of the server is counted for every request that was due meanwhile, not only for
   those that it had received (no coordinated omission). A response must have status 200 and a
   body of BODY_BYTES. Prints one line: RESULT name=number ...

       requests           that were answered as expected
       offered            that were due
       status, size       wrong responses; size also counts responses that cannot be read
       reset              requests whose connection ended before the response
       unanswered         requests without a response when the program gave up
       reconnected        connections that the server closed while they were idle
       waited             requests that were due while no connection was free
       late               requests that this program sent over 1 ms too late, by its own fault
       nanos              from the start to the last response
       p50, p99, p999, max   latency in nanoseconds, of `requests`
*/

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_BYTES = 16 << 10, SCRATCH_BYTES = 256 << 10, EVENTS = 16, MOST_RESETS = 10000 };
static const int64_t SECOND = 1000000000, LATE = 1000000, GIVE_UP = 10 * SECOND;

struct connection {
    int fd;
    int busy;          /* a request was sent, or is being sent */
    size_t unsent;     /* bytes of it that the socket has not taken yet */
    int in_body;       /* the head of the response is complete */
    long long missing; /* then: bytes of the body */
    int wrong;         /* the response has the wrong status or size */
    int64_t due;
    size_t head_bytes;
    char head[HEAD_BYTES];
};

static struct connection *connections, **idle; /* idle: a ring, the one that waits longest first */
static size_t connection_count, idle_first, idle_count;
static char *request, scratch[SCRATCH_BYTES];
static size_t request_bytes;
static long long body_bytes;
static int epoll, port;
static int64_t free_since; /* when a connection became free after none was */

static long offered, answered, wrong_status, wrong_size, reset, reconnected, waited, late;
static int64_t last_answer, longest;

static void fail(const char *format, ...) {
    va_list words;
    va_start(words, format);
    vfprintf(stderr, format, words);
    va_end(words);
    fputc('\n', stderr);
    exit(1);
}

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

/* Latencies by size: 128 classes for each power of two, so that a class is at most 0.8 % wide. */

enum { PRECISION = 7, CLASSES = (64 - PRECISION + 1) << PRECISION };
static long histogram[CLASSES];

static void record(int64_t nanos) {
    uint64_t value = nanos < 0 ? 0 : (uint64_t)nanos;
    int shift = 63 - __builtin_clzll(value | 1) - PRECISION;
    if (shift < 0) shift = 0;
    histogram[((size_t)shift << PRECISION) + (value >> shift)]++;
    if (nanos > longest) longest = nanos;
}

static int64_t percentile(double share) {
    long wanted = (long)ceil(share * (double)answered), seen = 0;
    for (size_t class = 0; class < CLASSES; class++) {
        seen += histogram[class];
        if (!seen || seen < wanted) continue;
        size_t shift = class >> PRECISION;
        if (shift) shift--;
        int64_t above = (int64_t)((class - (shift << PRECISION) + 1) << shift) - 1;
        return above < longest ? above : longest;
    }
    return 0;
}

/* Arrivals. */

static uint64_t random_state;

static double uniform(void) { /* splitmix64; in (0, 1] */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ((double)((z ^ z >> 31) >> 11) + 1.0) * 0x1p-53;
}

/* Connections. */

static void watch(struct connection *one, int how, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = one};
    if (epoll_ctl(epoll, how, one->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

static void open_connection(struct connection *one) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1;
    one->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (one->fd < 0 || connect(one->fd, (struct sockaddr *)&address, sizeof address))
        fail("cannot connect to 127.0.0.1:%d: %s", port, strerror(errno));
    setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    watch(one, EPOLL_CTL_ADD, EPOLLIN);
}

static void set_free(struct connection *one, int64_t now) {
    one->busy = one->in_body = one->wrong = 0;
    one->head_bytes = one->unsent = 0;
    if (!idle_count) free_since = now;
    idle[(idle_first + idle_count++) % connection_count] = one;
}

static void broken(struct connection *one, int64_t now) {
    close(one->fd);
    open_connection(one);
    if (!one->busy) {
        reconnected++;
        return;
    }
    if (++reset > MOST_RESETS) fail("the server has closed %d connections", MOST_RESETS);
    set_free(one, now);
}

static void send_rest(struct connection *one, int64_t now) {
    int blocked = one->unsent != request_bytes;
    while (one->unsent) {
        const char *rest = request + request_bytes - one->unsent;
        ssize_t sent = send(one->fd, rest, one->unsent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            watch(one, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;
        }
        if (sent < 0) {
            broken(one, now);
            return;
        }
        one->unsent -= (size_t)sent;
    }
    if (blocked) watch(one, EPOLL_CTL_MOD, EPOLLIN);
}

static void complete(struct connection *one, int64_t now) {
    if (!one->wrong) {
        answered++;
        last_answer = now;
        record(now - one->due);
    }
    set_free(one, now);
}

/* The head of a response is there, and `extra` bytes behind it. */
static void read_head(struct connection *one, long long extra) {
    char *length = strcasestr(one->head, "\r\ncontent-length:");
    one->in_body = 1;
    one->missing = length ? atoll(length + strlen("\r\ncontent-length:")) : -1;
    if (strncmp(one->head, "HTTP/1.1 200", strlen("HTTP/1.1 200"))) {
        one->wrong = 1;
        wrong_status++;
    } else if (one->missing != body_bytes) {
        one->wrong = 1;
        wrong_size++;
    }
    one->missing -= extra;
}

static void receive(struct connection *one, int64_t now) {
    char *room = one->in_body ? scratch : one->head + one->head_bytes;
    size_t most = one->in_body ? SCRATCH_BYTES : HEAD_BYTES - 1 - one->head_bytes;
    ssize_t count = recv(one->fd, room, most, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0 || !one->busy) { /* without a request nothing but the end may arrive */
        broken(one, now);
        return;
    }
    if (one->in_body) {
        one->missing -= count;
    } else {
        one->head_bytes += (size_t)count;
        char *end = memmem(one->head, one->head_bytes, "\r\n\r\n", 4);
        if (end) {
            long long extra = one->head + one->head_bytes - (end + 4);
            end[2] = 0;
            read_head(one, extra);
        } else if (one->head_bytes == HEAD_BYTES - 1) {
            one->in_body = 1;
            one->missing = -1;
        }
    }
    if (!one->in_body || one->missing > 0) return;
    if (one->missing < 0) { /* chunked, or more than was announced: where it ends is not known */
        if (!one->wrong) wrong_size++;
        close(one->fd);
        open_connection(one);
        one->wrong = 1;
    }
    complete(one, now);
}

static void load_request(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail("cannot read %s", path);
    request_bytes = (size_t)ftell(file);
    rewind(file);
    request = malloc(request_bytes);
    if (!request_bytes || fread(request, 1, request_bytes, file) != request_bytes)
        fail("cannot read %s", path);
    fclose(file);
}

int main(int count, char **words) {
    if (count != 8)
        fail("usage: open_loop PORT RATE SECONDS CONNECTIONS SEED REQUEST_FILE BODY_BYTES");
    port = atoi(words[1]);
    double rate = atof(words[2]), seconds = atof(words[3]);
    connection_count = (size_t)atoi(words[4]);
    random_state = strtoull(words[5], NULL, 10);
    load_request(words[6]);
    body_bytes = atoll(words[7]);
    if (rate <= 0 || seconds <= 0 || !connection_count)
        fail("RATE, SECONDS and CONNECTIONS must be above 0");
    prctl(PR_SET_TIMERSLACK, 1); /* wake up when it is time, not up to 50 us later */
    epoll = epoll_create1(0);
    connections = calloc(connection_count, sizeof *connections);
    idle = calloc(connection_count, sizeof *idle);
    for (size_t place = 0; place < connection_count; place++) {
        open_connection(&connections[place]);
        set_free(&connections[place], 0);
    }
    struct epoll_event events[EVENTS];
    int64_t start = clock_ns(), now = start, end = start + (int64_t)(seconds * (double)SECOND);
    double offset = -log(uniform()) / rate * (double)SECOND;
    for (;;) {
        int64_t due = start + (int64_t)offset;
        while (due < end && due <= now && idle_count) {
            struct connection *one = idle[idle_first];
            idle_first = (idle_first + 1) % connection_count;
            idle_count--;
            int waits = due < free_since;
            waited += waits;
            late += now - (waits ? free_since : due) > LATE;
            one->busy = 1;
            one->due = due;
            one->unsent = request_bytes;
            offered++;
            offset += -log(uniform()) / rate * (double)SECOND;
            send_rest(one, now);
            due = start + (int64_t)offset;
            now = clock_ns();
        }
        if (due >= end && idle_count == connection_count) break;
        if (now > end + GIVE_UP) break;
        int64_t until = due < end && idle_count ? due : end + GIVE_UP;
        int64_t wait = until > now ? until - now : 0;
        struct timespec limit = {.tv_sec = wait / SECOND, .tv_nsec = wait % SECOND};
        int ready = epoll_pwait2(epoll, events, EVENTS, &limit, NULL);
        if (ready < 0 && errno != EINTR) fail("epoll_pwait2: %s", strerror(errno));
        now = clock_ns();
        for (int place = 0; place < ready; place++) {
            struct connection *one = events[place].data.ptr;
            if (events[place].events & EPOLLOUT) send_rest(one, now);
            if (events[place].events & ~(uint32_t)EPOLLOUT) receive(one, now);
        }
    }
    long unanswered = (long)(connection_count - idle_count);
    while (start + (int64_t)offset < end) { /* those that could not even be sent */
        unanswered++;
        offered++;
        offset += -log(uniform()) / rate * (double)SECOND;
    }
    printf("RESULT requests=%ld offered=%ld status=%ld size=%ld reset=%ld unanswered=%ld "
           "reconnected=%ld waited=%ld late=%ld nanos=%lld p50=%lld p99=%lld p999=%lld max=%lld\n",
           answered, offered, wrong_status, wrong_size, reset, unanswered, reconnected, waited,
           late, (long long)(last_answer > start ? last_answer - start : 0),
           (long long)percentile(0.5), (long long)percentile(0.99), (long long)percentile(0.999),
           (long long)longest);
    return 0;
}
