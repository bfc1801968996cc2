/* Answers every HTTP/1.1 request at once, with the same response.

       responder PORT RESPONSE_FILE

   Serves keep-alive connections to 127.0.0.1:PORT with one thread, which polls its sockets without
   ever sleeping. A request is a head and as many bytes as its Content-Length says; nothing of it is
   looked at. The response is sent as it is in RESPONSE_FILE. No server can be quicker: the latency
   that a load generator measures here is that of the machine and of the generator itself. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { REQUEST_BYTES = 64 << 10, RESPONSE_BYTES = 64 << 10, EVENTS = 64 };

struct connection {
    int fd;
    size_t bytes; /* of requests that are not complete */
    char data[REQUEST_BYTES];
};

static char response[RESPONSE_BYTES];
static size_t response_bytes;

static void fail(const char *format, ...) {
    va_list words;
    va_start(words, format);
    vfprintf(stderr, format, words);
    va_end(words);
    fputc('\n', stderr);
    exit(1);
}

/* The size of the first request, or 0 while its head is not complete. */
static size_t request_size(const struct connection *one) {
    static const char field[] = "\r\ncontent-length:";
    const char *end = memmem(one->data, one->bytes, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = (size_t)(end + 4 - one->data);
    for (const char *at = one->data; at < end; at++)
        if (*at == '\r' && !strncasecmp(at, field, sizeof field - 1))
            return head + strtoul(at + sizeof field - 1, NULL, 10);
    return head;
}

/* Read what there is and answer what is complete; 0 once the connection has ended. */
static int serve(struct connection *one) {
    ssize_t count = recv(one->fd, one->data + one->bytes, REQUEST_BYTES - one->bytes, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return 1;
    if (count <= 0) return 0;
    one->bytes += (size_t)count;
    size_t size;
    while ((size = request_size(one)) && size <= one->bytes) {
        if (send(one->fd, response, response_bytes, MSG_NOSIGNAL) != (ssize_t)response_bytes)
            return 0;
        one->bytes -= size;
        memmove(one->data, one->data + size, one->bytes);
    }
    return one->bytes < REQUEST_BYTES; /* a larger request is not one of ours */
}

static int listen_on(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024))
        fail("cannot listen on port %d: %s", port, strerror(errno));
    return listener;
}

static void accept_one(int epoll, int listener) {
    int yes = 1;
    struct connection *one = calloc(1, sizeof *one);
    one->fd = accept(listener, NULL, NULL);
    if (one->fd < 0) {
        free(one);
        return;
    }
    setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, one->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

int main(int count, char **words) {
    if (count != 3) fail("usage: responder PORT RESPONSE_FILE");
    FILE *file = fopen(words[2], "rb");
    if (!file) fail("cannot read %s", words[2]);
    response_bytes = fread(response, 1, RESPONSE_BYTES, file);
    fclose(file);
    int epoll = epoll_create1(0), listener = listen_on(atoi(words[1]));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS];
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event)) fail("epoll_ctl: %s", strerror(errno));
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, 0);
        if (ready < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
        for (int place = 0; place < ready; place++) {
            struct connection *one = events[place].data.ptr;
            if (!one) {
                accept_one(epoll, listener);
            } else if (!serve(one)) {
                close(one->fd);
                free(one);
            }
        }
    }
}
