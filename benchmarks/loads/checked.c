/* Sends HTTP/1.1 requests over many connections and checks each answer.

       checked PORT THREADS CONNECTIONS SECONDS REQUESTS FILE EXPECTED [FILE EXPECTED ...]

   Each FILE holds a whole request, and EXPECTED is a text that its answer must contain. Every
   connection sends the next request when the last one was answered; they take the files in turn.
   Ends after SECONDS, or after so many REQUESTS if that is not 0; all that was sent is awaited.
   Prints one line: RESULT name=number ...

       requests           that were answered with status 200 and the expected text
       status, wrong      other answers: another status, or without the text
       reset              requests whose connection ended before the answer
       nanos              from the start to the last answer
       p50, p99, max      latency in nanoseconds, of all answers
*/

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_BYTES = 32 << 10, EVENTS = 256, BUCKETS = 4096, PER_DECADE = 400 };

struct request {
    char *content;
    size_t size;
    const char *expected;
};

struct connection {
    int fd;
    int next;           /* the request that it sends */
    size_t sent;
    int64_t begun;
    size_t filled;
    char answer[ANSWER_BYTES + 1];
};

struct worker {
    pthread_t thread;
    int connections, first;
    long requests, status, wrong, reset, answered;
    int64_t slowest, ended;
    long latencies[BUCKETS];
    char example[600];  /* the first wrong answer */
};

static struct request *requests;
static int request_count;
static struct sockaddr_in server;
static int64_t start, deadline;
static atomic_long to_send; /* how many may still be begun */

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int bucket(int64_t nanos) {
    int found = (int)(log10(nanos < 1 ? 1.0 : (double)nanos) * PER_DECADE);
    return found < BUCKETS ? found : BUCKETS - 1;
}

static int begin(struct connection *c) { /* false if no more are to be sent */
    if (now() >= deadline || atomic_fetch_sub(&to_send, 1) <= 0) return 0;
    c->sent = c->filled = 0;
    c->begun = now();
    return 1;
}

static int connect_it(struct connection *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (struct sockaddr *)&server, sizeof server) < 0) return 0;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
    return 1;
}

static int push(struct connection *c) { /* false if the connection has ended */
    struct request *r = &requests[c->next];
    while (c->sent < r->size) {
        ssize_t n = send(c->fd, r->content + c->sent, r->size - c->sent, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN;
        c->sent += (size_t)n;
    }
    return 1;
}

static int pull(struct connection *c) { /* 1: the answer is complete; 0: not yet; -1: it has ended */
    for (;;) {
        ssize_t n = recv(c->fd, c->answer + c->filled, ANSWER_BYTES - c->filled, 0);
        if (n < 0 && errno == EAGAIN) return 0;
        if (n <= 0) return -1;
        c->filled += (size_t)n;
        c->answer[c->filled] = 0;
        char *end = strstr(c->answer, "\r\n\r\n");
        if (end == NULL) continue;
        char *length = strcasestr(c->answer, "\r\ncontent-length:");
        if (length == NULL || length > end) return -1;
        size_t whole = (size_t)(end + 4 - c->answer) + (size_t)atol(length + 17);
        if (whole > ANSWER_BYTES) return -1;
        if (c->filled >= whole) return 1;
    }
}

static void count(struct worker *w, struct connection *c) {
    int64_t took = now() - c->begun;
    w->answered++;
    w->latencies[bucket(took)]++;
    if (took > w->slowest) w->slowest = took;
    w->ended = now();
    int good = strncmp(c->answer, "HTTP/1.1 200", 12) == 0;
    if (good && strstr(c->answer, requests[c->next].expected) != NULL) {
        w->requests++;
        return;
    }
    if (good) w->wrong++;
    else w->status++;
    if (!w->example[0])
        snprintf(w->example, sizeof w->example, "expected %.60s: %.500s",
                 requests[c->next].expected, c->answer);
}

static void *work(void *given) {
    struct worker *w = given;
    struct connection *all = calloc((size_t)w->connections, sizeof *all);
    struct epoll_event events[EVENTS];
    int poll = epoll_create1(0), open = 0;
    for (int i = 0; i < w->connections; i++) {
        struct connection *c = &all[i];
        c->next = (w->first + i) % request_count;
        if (!connect_it(c)) { w->reset++; continue; }
        if (!begin(c)) continue;
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &e);
        open++;
    }
    while (open) {
        int n = epoll_wait(poll, events, EVENTS, 60000);
        if (n == 0) { w->reset += open; break; } /* a minute without any answer */
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            int state = push(c) ? 0 : -1;
            while (state == 0 && (state = pull(c)) == 1) {
                count(w, c);
                c->next = (c->next + 1) % request_count;
                if (!begin(c)) break;
                state = push(c) ? 0 : -1;
            }
            if (state == 0) continue;
            if (state < 0) w->reset++;
            close(c->fd);
            open--;
        }
    }
    return NULL;
}

static int read_file(struct request *r, const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    fseek(file, 0, SEEK_END);
    r->size = (size_t)ftell(file);
    rewind(file);
    r->content = malloc(r->size);
    int whole = fread(r->content, 1, r->size, file) == r->size;
    fclose(file);
    return whole;
}

int main(int argc, char **argv) {
    if (argc < 8 || argc % 2) {
        fputs("checked PORT THREADS CONNECTIONS SECONDS REQUESTS FILE EXPECTED ...\n", stderr);
        return 2;
    }
    int threads = atoi(argv[2]), connections = atoi(argv[3]);
    long most = atol(argv[5]);
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)atoi(argv[1]));
    inet_pton(AF_INET, "127.0.0.1", &server.sin_addr);
    request_count = (argc - 6) / 2;
    requests = calloc((size_t)request_count, sizeof *requests);
    for (int i = 0; i < request_count; i++) {
        requests[i].expected = argv[7 + 2 * i];
        if (!read_file(&requests[i], argv[6 + 2 * i])) { perror(argv[6 + 2 * i]); return 2; }
    }
    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    atomic_store(&to_send, most ? most : INT64_MAX / 2);
    start = now();
    deadline = start + (int64_t)(atof(argv[4]) * 1e9);
    for (int i = 0, first = 0; i < threads; i++) {
        workers[i].connections = connections / threads + (i < connections % threads);
        workers[i].first = first;
        first += workers[i].connections;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    struct worker all = {0};
    for (int i = 0; i < threads; i++) {
        struct worker *w = &workers[i];
        pthread_join(w->thread, NULL);
        all.requests += w->requests, all.status += w->status, all.wrong += w->wrong;
        all.reset += w->reset, all.answered += w->answered;
        if (w->slowest > all.slowest) all.slowest = w->slowest;
        if (w->ended > all.ended) all.ended = w->ended;
        for (int k = 0; k < BUCKETS; k++) all.latencies[k] += w->latencies[k];
        if (w->example[0]) fprintf(stderr, "%s\n", w->example);
    }
    double shares[] = {0.5, 0.99};
    int64_t found[2] = {0, 0};
    for (int j = 0; j < 2; j++) {
        long passed = 0;
        for (int k = 0; k < BUCKETS && !found[j]; k++) {
            passed += all.latencies[k];
            if (all.answered && passed >= shares[j] * all.answered)
                found[j] = (int64_t)pow(10, (k + 1.0) / PER_DECADE);
        }
    }
    printf("RESULT requests=%ld status=%ld wrong=%ld reset=%ld nanos=%lld p50=%lld p99=%lld max=%lld\n",
           all.requests, all.status, all.wrong, all.reset, (long long)(all.ended - start),
           (long long)found[0], (long long)found[1], (long long)all.slowest);
    return 0;
}
