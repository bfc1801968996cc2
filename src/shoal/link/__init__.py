"""The link between processes of one server: messages, shared memory, supervised children.

    ChildProcess ==socket== serve_link          start, end, restart
        Link ---- messages with tensors ---- Link
        MessageChannel -- frames, files -- MessageChannel

One side starts the other, both run on one machine, and both are of one version of Shoal. The parts
know nothing of models or protocols; the modules that `bootstrap` imports need numpy only, because a
child may run in another Python environment.

The format, version `VERSION`:

- A frame is a little-endian uint32 length and that many bytes: `marshal` (format 4) of a tuple
  `(kind, body, news)`. `kind` is a text, `body` a tuple of plain values. Reading them runs no code.
- `news` is None, or lists `(released, opened, closed)` about shared memory: numbers of segments of
  the other side that are unused now; `(number, size, tag)` of segments that this side has opened,
  whose descriptors (SCM_RIGHTS) travel with the frame in this order; and numbers of those that it
  has closed.
- A tensor is `(name, datatype, shape, place)` and an array `(dtype, shape, place)`. The place is
  its row-major little-endian bytes or, if they are many, `(segment, start, end)`.
- The child's first message is `("hello", (VERSION,), None)`. A child that cannot start sends
  `("failed", (text,), None)` instead. All other kinds belong to the two programs that use the link.
"""

VERSION = 1
