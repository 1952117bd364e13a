"""Requests that no honest client sends, as a table for test_hostile.py.

A case is (name, bytes, statuses): what is sent on a connection of its own, and the statuses of all that comes back before
the server closes it. Nothing of what follows a rejection is read. tests/unit/test_head.c has what a head may hold, byte by
byte; here is one of each kind, and all that the library reads in its own way.
"""

LIVE = b"GET /v2/health/live HTTP/1.1\r\n"
INFER = b"POST /v2/models/example/infer HTTP/1.1\r\n"
HOST = b"Host: example.org\r\n"
NEXT = LIVE + HOST + b"\r\n"  # a request of its own, if what is in front of it is one as well
BODY = b'{"inputs": [{"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]}]}'
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)


def get(*lines, host=HOST):
    return LIVE + host + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def post(*lines, body=b"", first=INFER):
    return first + HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def length(text):
    return b"Content-Length: " + text


def line(text):
    """A GET with this first line."""
    return text + b"\r\n" + HOST + b"\r\n"


def live(target, version=b"HTTP/1.1"):
    return line(b"GET /v2/health/live" + target + b" " + version)


def chunks(body, *lines):
    return post(b"Transfer-Encoding: chunked", *lines, body=body)


def each(status, requests, behind=b""):
    """Cases of requests by name that all get one status."""
    return [(name, request + behind, (status,)) for name, request in requests.items()]


# ---- what must work, so that the rest is not rejected for a wrong reason -----------------------
SIZED = post(length(b"%d" % len(BODY)), body=BODY)
VALID = each(200, {
    "plain": get(), "an empty line first": b"\r\n" + get(), "chunks": chunks(CHUNK + b"0\r\n\r\n") + NEXT,
    "a chunk with an extension": chunks(b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "chunks with a trailer": chunks(CHUNK + b"0\r\nX: y\r\n\r\n") + NEXT,
    "HTTP/1.0 without Host": b"GET /v2/health/live HTTP/1.0\r\n\r\n", "UTF-8 in a value": get(b"X: \xc3\xa4"),
    "fifty headers": get(*(b"X-%d: y" % i for i in range(50))), "a cookie of one quote": get(b'cookie: a="', b"Cookie: b"),
    "a long cookie": get(b"COOKIE: " + b"a=" * 5000), "a query": live(b"?a=b%zz&[c]=/?"),
    "a query of 64 arguments": live(b"?" + b"a&" * 63),
    "a whole URL for inference": SIZED.replace(b"POST ", b"POST http://h"), "HEAD": line(b"HEAD /v2/health/live HTTP/1.1"),
}) + each(414, {"a query of 65 arguments": live(b"?" + b"a&" * 64), "a query of 3,000 arguments": live(b"?" + b"a&" * 3000)}) + [
    ("two requests", get() + NEXT, (200, 200)), ("a length", SIZED + NEXT, (200, 200)),
    ("a thousand cookies", get(b"Cookie: " + b"a=b; " * 1000), (431,))]

# ---- the first line ---------------------------------------------------------------------------
FIRST_LINES = each(505, {"HTTP/1.2": live(b"", b"HTTP/1.2") + NEXT, "HTTP/2.0": live(b"", b"HTTP/2.0") + NEXT,
                         "HTTP/0.9": live(b"", b"HTTP/0.9"), "PRI, as HTTP/2 begins": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) + \
    each(400, {f"version {text.decode()}": live(b"", text) for text in (
        b"HTTP/11", b"HTTP/1.10", b"HTTP/1", b"HTTP/1.", b"http/1.1", b"HTTP 1.1", b"HTTPS/1.1", b"HTTP/1.1 ")}) + \
    each(400, {
        "two blanks behind the method": line(b"GET  /v2/health/live HTTP/1.1"),
        "a first line that ends with LF": b"GET /v2 HTTP/1.1\n" + HOST + b"\r\n",
        "a tab for a blank": line(b"GET\t/v2/health/live\tHTTP/1.1"), "no version": line(b"GET /v2/health/live"),
        "only a method": line(b"GET"), "a method and a blank": line(b"GET "), "no method": line(b" /v2/health/live HTTP/1.1"),
        "a method with a CR": line(b"GE\rT /v2/health/live HTTP/1.1"),
        "a method with a byte above 127": line(b"G\xe4T /v2/health/live HTTP/1.1"),
        "CONNECT": line(b"CONNECT example.org:80 HTTP/1.1") + NEXT,
        "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x5c" * 64 + b"\r\n",
        "NULs": b"\0" * 64 + b"\r\n\r\n", "random bytes": bytes(range(255, 127, -1)) + b"\r\n\r\n",
        "only LFs, then nothing": b"\n" * 1000}) + \
    each(405, {"a method in small letters": line(b"get /v2/health/live HTTP/1.1"), "TRACE": line(b"TRACE /v2 HTTP/1.1"),
               "a long method": line(b"G" * 1000 + b" /v2/health/live HTTP/1.1")}) + \
    each(414, {"33,000 bytes without an end": b"G" * 33000, "a target of 40,000 bytes": live(b"a" * 40000)}) + \
    each(204, {"OPTIONS *": line(b"OPTIONS * HTTP/1.1")})

# ---- targets ----------------------------------------------------------------------------------
TARGETS = each(400, {f"target with {name}": live(text) for name, text in {
    "a blank": b" x", "a tab": b"\tx", "a NUL": b"\0x", "a NUL and a version": b"\0HTTP/1.1", "ESC": b"\x1b[31m", "a CR": b"\rx",
    "a byte above 127": b"\xff", "a fragment": b"#x", "a control byte in the query": b"?a=\x02"}.items()}, NEXT) + \
    each(400, {f"target {text.decode()}": line(b"GET " + text + b" HTTP/1.1") for text in (
        b"v2/health/live", b"?x", b"ftp://example.org/v2", b"http:///v2")}) + \
    each(404, {"target of dots": line(b"GET /v2/../../etc/passwd HTTP/1.1"),
               "target with an escaped NUL": line(b"GET /v2/models/example%00 HTTP/1.1")})

# ---- header lines -----------------------------------------------------------------------------
HEADERS = each(400, {f"header {name}": get(text) for name, text in {
    "with a blank in front of the colon": b"X : y", "without a name": b": y", "with a slash in its name": b"X/Y: z",
    "with a CR in its name": b"X\rY: z", "with a byte above 127 in its name": b"X\xe4: y", "with ESC": b"X: \x1b[0m",
    "with a bare CR": b"X: a\rb", "with a CR at its end": b"X: a\r", "with a NUL": b"X: a\0b", "that is a NUL": b"X: \0",
    "with a NUL at its end": b"X: a\0", "that is folded": b"X: a\r\n b", "that is folded by a tab": b"X: a\r\n\tb",
    "that is folded twice": b"X: a\r\n b\r\n c", "that is folded and empty": b"X:\r\n b",
    "that ends with LF alone": b"X: a\nY: b", "without a colon": b"nonsense"}.items()}, NEXT) + \
    each(400, {
        "an empty line that ends with LF": LIVE + HOST + b"\n",
        "a NUL in the last header": get(b"X: a\0"), "a folded first line": LIVE + b" " + HOST + b"\r\n",
        "a NUL in a name": get(b"X\0: y"), "a NUL in front of a header": get(b"\0: y"),
        "a NUL in front of another request": LIVE + HOST + b"\0\r\n", "no Host": get(host=b""),
        "a name that folding makes": post(b"Transfer-: chunked\r\n Encoding", body=b"0\r\n\r\n"),
        "two Hosts": get(b"Host: example.org"), "a Host with a user": get(host=b"Host: u@a\r\n")}, NEXT) + \
    each(400, {"lines that end with LF": (LIVE + HOST + b"\r\n").replace(b"\r", b"")}) + \
    each(431, {"headers of 40,000 bytes": get(b"X: " + b"y" * 40000), "a name of 40,000 bytes": get(b"X" * 40000 + b": y"),
               "10,000 headers": get(*(b"X-%d: y" % i for i in range(10000)))})

# ---- where the body ends ----------------------------------------------------------------------
CHUNKED, CHUNKS = b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"
FRAMING = each(400, {
    "two lengths": post(length(b"5"), length(b"6"), body=b"hello"), "one length twice": post(length(b"5"), length(b"5"), body=b"hello"),
    "a length and chunks": post(length(b"5"), CHUNKED, body=CHUNKS), "chunks and a length": post(CHUNKED, length(b"5"), body=CHUNKS),
    "a length of nothing and chunks": post(length(b"0"), CHUNKED, body=CHUNKS),
    "a length and an unknown coding": post(length(b"5"), b"Transfer-Encoding: gzip", body=b"hello"),
    "chunked twice": post(CHUNKED, CHUNKED, body=CHUNKS),
    "identity and chunked": post(b"Transfer-Encoding: identity", CHUNKED, body=CHUNKS),
    "chunks in HTTP/1.0": post(CHUNKED, body=CHUNKS, first=INFER.replace(b"1.1", b"1.0")),
    "a chunked GET with a length": get(length(b"5"), CHUNKED),
    "chunked with a blank in front of the colon": post(b"Transfer-Encoding : chunked", body=CHUNKS),
    "a length with a blank in front of the colon": post(b"Content-Length : 5", body=b"hello"),
    "a length with a NUL": post(length(b"5\x006"), body=b"hello"),
    "a chunk longer than its size": chunks(b"3\r\nhello\r\n0\r\n\r\n")}, NEXT) + [
    ("two JSON lengths", post(length(b"%d" % len(BODY)), b"Inference-Header-Content-Length: 5",
                              b"Inference-Header-Content-Length: %d" % len(BODY), body=BODY) + NEXT, (400, 200)),
    ("a length with zeros in front", post(length(b"00005"), body=b"hello") + NEXT, (400, 200)),
    ("an expectation and two lengths", post(b"Expect: 100-continue", length(b"5"), length(b"6")), (400,)),
    ("a chunk of 2^60 bytes", chunks(b"1000000000000000\r\nhello"), (408,))]
for _status, _texts in ((501, (b" gzip", b" identity", b" gzip, chunked", b" chunked, gzip", b" xchunked", b' "chunked"', b" chunked ", b"")),
                        (400, (b" \x0bchunked", b" chunked\0", b"\r\n chunked", b" chu\rnked"))):
    FRAMING += each(_status, {f"coding {text.decode()!r}": post(b"Transfer-Encoding:" + text, body=CHUNKS) for text in _texts}, NEXT)
for _status, _texts in ((400, (b"-5", b"5,5", b"0x5", b"5 5", b"")), (413, (b"9223372036854775808", b"18446744073709551616"))):
    FRAMING += each(_status, {f"length {text.decode()!r}": post(length(text), body=b"hello") for text in _texts}, NEXT)
for _status, _texts in ((400, (b"-5", b"+5", b"0x5", b"g", b" 5", b"5 5", b"", b";a", b"5\0")), (413, (b"10000000000000005", b"f" * 17))):
    FRAMING += each(_status, {f"chunk size {text.decode()!r}": chunks(text + b"\r\nhello\r\n0\r\n\r\n") for text in _texts}, NEXT)

# ---- chunks: CR LF everywhere, and bounded lines ------------------------------------------------
SIZE, LAST = b"%x" % len(BODY), b"0\r\n\r\n"
CHUNK_LINE_BYTES = 256
TRAILER_BYTES, TRAILER_LINE_BYTES = 1024, 64
LONGEST_EXTENSION = CHUNK_LINE_BYTES - len(SIZE + b";\r\n")


def extended(count):
    """A chunk with an extension of so many bytes, behind its semicolon."""
    return chunks(SIZE + b";" + b"x" * count + b"\r\n" + BODY + b"\r\n" + LAST)


def trailer(count):
    """A trailer of one line, which counts `count` bytes with the empty line at its end."""
    line_bytes = count - TRAILER_LINE_BYTES - 2
    return chunks(CHUNK + b"0\r\nX:" + b"y" * (line_bytes - 4) + b"\r\n\r\n")


LONG_EXTENSIONS = (16100, 16200, 16384, 20000, 65536, 1 << 20)
CHUNK_FORMS = each(200, {f"an extension of {count} bytes": extended(count) for count in (0, LONGEST_EXTENSION)}, NEXT) + \
    each(400, {f"an extension of {count} bytes": extended(count) for count in (LONGEST_EXTENSION + 1, 8000, *LONG_EXTENSIONS)}, NEXT) + \
    each(400, {f"chunks with {name}": chunks(body) for name, body in {
        "LF behind the size": SIZE + b"\n" + BODY + b"\r\n" + LAST, "LF behind an extension": SIZE + b";a\n" + BODY + b"\r\n" + LAST,
        "CR in an extension": SIZE + b";a\rb\r\n" + BODY + b"\r\n" + LAST, "a NUL in an extension": SIZE + b";a\0\r\n" + BODY + b"\r\n" + LAST,
        "LF behind the data": SIZE + b"\r\n" + BODY + b"\n" + LAST, "nothing behind the data": SIZE + b"\r\n" + BODY + LAST,
        "LF behind the last size": CHUNK + b"0\n\r\n", "LF at the end": CHUNK + b"0\r\n\n", "LF alone at the end": CHUNK + b"0\n\n",
        "LF behind a trailer": CHUNK + b"0\r\nX: y\n\r\n", "a folded trailer": CHUNK + b"0\r\nX: y\r\n z\r\n\r\n",
        "a trailer without a colon": CHUNK + b"0\r\nX\r\n\r\n", "a blank behind the size": SIZE + b" \r\n" + BODY + b"\r\n" + LAST}.items()}, NEXT) + \
    each(200, {"the longest trailer": trailer(TRAILER_BYTES), "zeros in front of a chunk size": chunks(b"0" * 200 + CHUNK + LAST)}, NEXT) + \
    each(431, {"too long a trailer": trailer(TRAILER_BYTES + 1), "an endless trailer": chunks(CHUNK + b"0\r\n" + b"X: y\r\n" * 100000)}, NEXT) + \
    each(413, {"a chunk of 2^63 bytes": chunks(b"8000000000000000\r\nhello")})

# ---- the sizes of heads -----------------------------------------------------------------------
HEAD_BYTES, LINE_BYTES = 13 << 10, 64


def long_head(count, lines):
    """A head that counts `count` bytes: its bytes, and LINE_BYTES for each of its lines."""
    rest = count - len(get(*[b"X: " for _ in range(lines)])) - LINE_BYTES * (lines + 1)
    share, more = divmod(rest, lines)
    return get(*[b"X: " + b"y" * (share + (more if i == 0 else 0)) for i in range(lines)])


SIZES = [(f"a head of {over} bytes beyond the most in {lines} lines", long_head(HEAD_BYTES + over, lines) + NEXT,
          (200, 200) if over <= 0 else (431,)) for over in (0, 1) for lines in (1, 20, 150)]

# ---- behind other requests --------------------------------------------------------------------
BEHIND = [(f"{name} behind {count} good requests", NEXT * count + bad + NEXT, (200,) * count + (status,))
          for count in (1, 3) for name, bad, status in [
              ("TLS", b"\x16\x03\x01\x02\x00\x01", 400), ("HTTP/2.0", line(b"GET / HTTP/2.0"), 505),
              ("a bad length", post(length(b"five")), 400), ("LF", LIVE + HOST + b"\n", 400),
              ("a bad chunk", chunks(b"5\nhello\r\n" + LAST), 400), ("a long target", live(b"?" + b"a" * 20000), 414)]]

# ---- requests without an end, which their deadline ends ---------------------------------------
SLOW = each(408, {
    "half a first line": b"GET /v2/heal", "no end of the head": LIVE + HOST, "half a header": LIVE + HOST + b"X: ",
    "half a body": post(length(b"100"), body=b"hello"), "no chunk": chunks(b""), "half a chunk": chunks(b"5\r\nhel"),
    "no last chunk": chunks(CHUNK), "no end of the trailer": chunks(CHUNK + b"0\r\nX: y\r\n")}) + [
    ("half a method", b"GE", ()), ("no body behind 100", post(b"Expect: 100-continue", length(b"100")), (100, 408))]

CASES = VALID + FIRST_LINES + TARGETS + HEADERS + FRAMING + CHUNK_FORMS + SIZES + BEHIND + SLOW

# ---- what the library reads in its own way ------------------------------------------------------
# It closes the connection without a word where there is no request.
SILENT = {
    "a tab for a blank", "only a method", "no method", "a TLS handshake", "NULs", "random bytes", "only LFs, then nothing",
    "an empty line first", "a method with a CR", "target with a NUL", "target with a NUL and a version",
    "33,000 bytes without an end", "TLS behind 1 good requests", "TLS behind 3 good requests"}
# 1.0 has no room for its own answer here, and closes as soon as another connection has it look again.
SILENT_SINCE_1_0 = {"an endless trailer", *(f"an extension of {count} bytes" for count in LONG_EXTENSIONS)}
# Requests that 0.9.75 lets pass: proxies in front of a server reject them, or pass them on in another form. If the library
# shows less than has arrived, the connection ends.
_ENDED = {f"header {name}" for name in (
    "without a name", "with a NUL", "that is a NUL", "with a NUL at its end", "that is folded", "that is folded by a tab",
    "that is folded twice", "that is folded and empty")} | {
    "target with a NUL", "target with a NUL and a version", "a NUL in the last header", "a NUL in front of a header",
    "a NUL in front of another request", "two blanks behind the method"}
_BOTH = {"header that ends with LF alone", "an empty line that ends with LF"}
BEFORE_1_0 = dict.fromkeys(_ENDED, (200,)) | dict.fromkeys(_BOTH, (200, 200)) | {
    "NULs": (408,), "only LFs, then nothing": (408,), "a first line that ends with LF": (200,),
    "lines that end with LF": (200,), "a length with a NUL": (400, 200), "LF behind 1 good requests": (200, 200, 200),
    "LF behind 3 good requests": (200, 200, 200, 200, 200), "a length and an unknown coding": (501,),
    "identity and chunked": (501,), "a cookie of one quote": (431,), "a long cookie": (431,)}
# The other answers of 1.0. It rejects codings before the server sees them. Before July 2026 it counts a line with an
# extension wrongly, and it reads a long one until the time is out.
SINCE_1_0 = {name: (400,) for name, _, statuses in CASES
             if name.startswith("coding ") or (statuses == (200,) and "extension" in name)} | \
    {f"an extension of {count} bytes": (408,) for count in LONG_EXTENSIONS} | {
        "too long a trailer": (200,), "a chunk of 2^63 bytes": (408,), "a long cookie": (431,)}
