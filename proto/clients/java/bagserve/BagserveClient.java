package bagserve;

import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketAddress;
import java.net.SocketTimeoutException;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.net.URI;
import java.net.URLEncoder;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;

/**
 * A client for bagserve, an inference server for embedding bags: one file, on Java's own library (17 and newer).
 *
 * <pre>{@code
 * try (var client = new BagserveClient("127.0.0.1:8000")) {
 *     var rows = client.offsets("items", new long[] {7, 99999, 7, 12345}, new long[] {0, 3}, null);
 *     var both = client.kjt("ranker", new long[] {0, 2, 4, 1, 7}, new long[] {2, 0, 1, 1, 1, 0}, null);
 * }
 * }</pre>
 *
 * Tensors travel as raw bytes both ways. A client keeps up to {@code connections} connections, and any number of threads
 * may use it at once; calls beyond that wait for each other.
 *
 * Calls throw a Failure, which has the text of the server. The client sends a call again, up to {@code retries} times,
 * if it could not connect or if the server answers 503 with Retry-After. It never repeats a call of which something
 * was sent, since the server may be at work on it. The address is HOST:PORT, http://HOST:PORT, https://HOST:PORT or
 * unix:///PATH.
 */
public final class BagserveClient implements AutoCloseable {
    private static final String HEADER_LENGTH = "inference-header-content-length";
    private static final long LONGEST_WAIT_MS = 5000;
    private static final long FIRST_JITTER_MS = 100;
    private static final long FIRST_INEXACT = 1L << 53; // from here on JSON's numbers do not hold every integer
    private static final long LOOKED_AT_AFTER_NS = 1_000_000_000L;
    private static final int LARGEST_ARRAY = Integer.MAX_VALUE - 8; // as Java's own library has it

    // ---- errors ------------------------------------------------------------------------------------------

    /** The kind of an error. */
    public enum Kind {
        /** 400, 415: the request itself, which will be wrong again. */
        BAD_REQUEST,
        /** 401, 403: no token, an unknown one, or one of another scope. */
        UNAUTHORIZED,
        /** 404: no such model or version. */
        NOT_FOUND,
        /** 409: a change that does not fit what is served. */
        CONFLICT,
        /** 413: more than the server's limit. */
        TOO_LARGE,
        /** 503, also after the retries. */
        UNAVAILABLE,
        /** 507: no room on the journal's disk, or no spare row. */
        STORAGE_FULL,
        /** Any other status. */
        SERVER_ERROR,
        /** No connection, or no whole answer. */
        CONNECTION_FAILED;

        private static Kind of(int status) {
            return switch (status) {
                case 400, 415 -> BAD_REQUEST;
                case 401, 403 -> UNAUTHORIZED;
                case 404 -> NOT_FOUND;
                case 409 -> CONFLICT;
                case 413 -> TOO_LARGE;
                case 503 -> UNAVAILABLE;
                case 507 -> STORAGE_FULL;
                default -> SERVER_ERROR;
            };
        }
    }

    /** The error of a call that failed. If the server answered, the message is the server's. */
    public static final class Failure extends IOException {
        private static final long serialVersionUID = 1;
        private final Kind kind;
        private final int status;
        private final String code;

        Failure(Kind kind, int status, String code, String text, Throwable cause) {
            super(text, cause);
            this.kind = kind;
            this.status = status;
            this.code = code;
        }

        /** Returns the kind of the error. */
        public Kind kind() {
            return kind;
        }

        /** Returns the status of HTTP, or 0 if there was no answer. */
        public int status() {
            return status;
        }

        /** Returns the server's code of the error, as PROTOCOL.md lists them; empty if there is none. */
        public String code() {
            return code;
        }
    }

    private static Failure broken(String what, Throwable cause) {
        String why = cause instanceof SocketTimeoutException ? "not in time" : String.valueOf(cause.getMessage());
        return new Failure(Kind.CONNECTION_FAILED, 0, "", what + ": " + why, cause);
    }

    // ---- what is asked and answered ----------------------------------------------------------------------

    /** Options of a client, which all have defaults. */
    public static final class Options {
        /** Sent with every call; null: none. */
        public String token;
        /** Maximum duration of one attempt. */
        public Duration timeout = Duration.ofSeconds(30);
        public int retries = 2;
        /** Maximum number of connections that are kept. */
        public int connections = 8;
        /** How https:// is verified; null: by the system's certificates. */
        public SSLContext ssl;
    }

    /** Optional parameters of a call that pools; null: not sent. */
    public static final class Query {
        public Long version;
        public String requestId;
        /** One for each id. */
        public float[] weights;
        public Long defaultIndex;
        public Long paddingIdx;
        public Boolean includeLastOffset;
        public String reduction;
        public String outputDatatype;
        /** int8 and so on; rows are decoded. */
        public String outputRowFormat;
        public String missing;
        public String outOfRange;
        /** In the server's queue. */
        public Duration timeout;
        public boolean explain;
        /** These alone. */
        public List<String> outputs;
    }

    /** FP32 rows, count of width each. */
    public record Rows(float[] values, int count, int width) {
        /** A copy of one of them. */
        public float[] row(int i) {
            return Arrays.copyOfRange(values, i * width, (i + 1) * width);
        }
    }

    /** Bags of one feature: ids, and where each bag begins; weights may be null. */
    public record Bags(long[] indices, long[] offsets, float[] weights) {
        /** Lists of ids, one for each bag. */
        public static Bags of(long[]... lists) {
            long[] offsets = new long[lists.length];
            long[] indices = new long[asInt("indices", Arrays.stream(lists).mapToLong(list -> list.length).sum())];
            int used = 0;
            for (int i = 0; i < lists.length; i++) {
                offsets[i] = used;
                System.arraycopy(lists[i], 0, indices, used, lists[i].length);
                used += lists[i].length;
            }
            return new Bags(indices, offsets, null);
        }
    }

    /**
     * A tensor of little-endian bytes, row by row. An output in a row format (Query.outputRowFormat) has UINT8 rows of
     * bytes, which stand for rowElements FP32 numbers each; rowFormat is null otherwise.
     */
    public record Tensor(String name, String datatype, long[] shape, byte[] data, String rowFormat, int rowElements) {
        public Tensor(String name, String datatype, long[] shape, byte[] data) {
            this(name, datatype, shape, data, null, 0);
        }

        public static Tensor of(String name, long[] values, long... shape) {
            ByteBuffer data = allocate(name, 8L * values.length);
            data.asLongBuffer().put(values);
            return new Tensor(name, "INT64", shape.length == 0 ? new long[] {values.length} : shape, data.array());
        }

        public static Tensor of(String name, float[] values, long... shape) {
            ByteBuffer data = allocate(name, 4L * values.length);
            data.asFloatBuffer().put(values);
            return new Tensor(name, "FP32", shape.length == 0 ? new long[] {values.length} : shape, data.array());
        }

        private static ByteBuffer allocate(String name, long bytes) {
            return ByteBuffer.allocate(asInt("'" + name + "'", bytes)).order(ByteOrder.LITTLE_ENDIAN);
        }

        /** The rows of an FP32 or BF16 tensor, or those that encoded rows stand for. */
        public Rows rows() {
            if (rowFormat != null) {
                return decodeRows();
            }
            ByteBuffer bytes = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
            float[] values = new float[data.length / (datatype.equals("FP32") ? 4 : 2)];
            if (datatype.equals("FP32")) {
                bytes.asFloatBuffer().get(values);
            } else if (datatype.equals("BF16")) {
                for (int i = 0; i < values.length; i++) {
                    values[i] = Float.intBitsToFloat(bytes.getShort(2 * i) << 16);
                }
            } else {
                throw new IllegalArgumentException("'" + name + "' is " + datatype
                        + ": read its data, or ask with outputDatatype FP32");
            }
            long width = 1;
            for (int i = 1; i < shape.length; i++) {
                width = asInt(name, width * asInt(name, shape[i]));
            }
            return new Rows(values, asInt(name, shape[0]), (int) width);
        }

        private static float halfToFloat(int bits) {
            int exponent = bits >> 10 & 31;
            float fraction = (bits & 1023) / 1024f;
            float value = exponent == 0 ? Math.scalb(fraction, -14)
                    : exponent < 31 ? Math.scalb(1 + fraction, exponent - 15)
                    : fraction == 0 ? Float.POSITIVE_INFINITY : Float.NaN;
            return (bits & 0x8000) == 0 ? value : -value;
        }

        /** Returns the value of column i's code without scale and bias. The codes begin at `at`. */
        private double code(int at, int i) {
            if (rowFormat.startsWith("int4")) {
                return data[at + i / 2] >> 4 * (i % 2) & 15;
            }
            if (rowFormat.startsWith("int2")) {
                return data[at + i / 4] >> 2 * (i % 4) & 3;
            }
            int code = data[at + i];
            if (rowFormat.startsWith("f8_e5m2")) {
                return halfToFloat((code & 255) << 8);
            }
            if (rowFormat.startsWith("f8_e4m3")) {
                return (code & 127) == 127 ? Double.NaN
                        : 256.0 * halfToFloat((code & 128) << 8 | (code & 127) << 7);
            }
            return rowFormat.startsWith("int8_symmetric") ? code : code & 255;
        }

        private Rows decodeRows() {
            boolean isF8 = rowFormat.startsWith("f8_e");
            boolean isSymmetric = rowFormat.startsWith("int8_symmetric");
            int perByte = rowFormat.startsWith("int4") ? 2 : rowFormat.startsWith("int2") ? 4 : 1;
            int numParams = isSymmetric || rowFormat.endsWith("_scaled") ? 1 : isF8 ? 0 : 2;
            boolean isWide = isF8 || rowFormat.equals("int8") || rowFormat.equals("int8_symmetric");
            int codeBytes = (rowElements + perByte - 1) / perByte;
            int paramBytes = numParams * (isWide ? 4 : 2);
            int rowBytes = codeBytes + paramBytes;
            boolean isKnown = isF8 || perByte > 1 || rowFormat.startsWith("int8");
            if (!isKnown || shape.length == 0 || shape[shape.length - 1] != rowBytes
                    || (rowBytes > 0 && data.length % rowBytes != 0)) {
                throw new IllegalArgumentException("'" + name + "' has no rows of " + rowElements
                        + " elements in the format '" + rowFormat + "'");
            }
            ByteBuffer bytes = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
            int count = rowBytes == 0 ? 0 : data.length / rowBytes;
            boolean inFront = rowFormat.endsWith("_front");
            float[] values = new float[asInt(name, (long) count * rowElements)];
            for (int row = 0; row < count; row++) {
                int codes = row * rowBytes + (inFront ? paramBytes : 0);
                int params = row * rowBytes + (inFront ? 0 : codeBytes);
                double[] numbers = {1, -0.0}; // a bias that changes no number, not even the sign of zero
                for (int i = 0; i < numParams; i++) {
                    numbers[i] = isWide ? bytes.getFloat(params + 4 * i)
                            : halfToFloat(bytes.getShort(params + 2 * i) & 0xffff);
                }
                for (int i = 0; i < rowElements; i++) {
                    values[row * rowElements + i] = (float) (code(codes, i) * numbers[0] + numbers[1]);
                }
            }
            int first = shape.length > 1 ? asInt(name, shape[0]) : 1;
            return new Rows(values, first, first == 0 ? rowElements : values.length / first);
        }
    }

    /** The contents of a reply. `explain` is JSON as Map, List and so on, or null. */
    public record Answer(List<Tensor> outputs, String modelVersion, String requestId, List<Object> warnings,
            Object explain) {}

    /** The result of a change. `applied` is false if the model had it already. */
    public record Applied(long sequence, boolean applied, long rows) {}

    // ---- beginning and end -------------------------------------------------------------------------------

    private final Options options;
    private final String host;
    private final SocketAddress place; // null: it is resolved for each connection
    private final String name;
    private final int port;
    private final SSLContext ssl;
    private final Semaphore free;
    private final ArrayDeque<Wire> idle = new ArrayDeque<>();
    private boolean isClosed;

    public BagserveClient(String address) {
        this(address, new Options());
    }

    public BagserveClient(String address, Options options) {
        this.options = options;
        free = new Semaphore(options.connections);
        if (options.token != null && !options.token.chars().allMatch(c -> c > 0x20 && c < 0x7f)) {
            throw new IllegalArgumentException("a token must be of visible ASCII characters");
        }
        if (address.startsWith("unix://") && !address.substring(7).replace("/", "").isEmpty()) {
            place = UnixDomainSocketAddress.of(address.substring(7));
            name = address;
            host = "localhost";
            port = 0;
            ssl = null;
            return;
        }
        URI uri = parse(address);
        boolean isSecure = "https".equals(uri.getScheme());
        place = null;
        name = uri.getHost().replaceAll("[\\[\\]]", "");
        host = uri.getAuthority();
        port = uri.getPort() > 0 ? uri.getPort() : isSecure ? 443 : 80;
        try {
            ssl = !isSecure ? null : options.ssl != null ? options.ssl : SSLContext.getDefault();
        } catch (java.security.NoSuchAlgorithmException problem) {
            throw new IllegalStateException(problem);
        }
    }

    private static URI parse(String address) {
        String wrong = "'" + address + "' is not HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:///PATH";
        try {
            URI uri = URI.create(address.contains("://") ? address : "http://" + address);
            if (uri.getHost() == null || !uri.getScheme().matches("https?") || !uri.getPath().matches("/?")
                    || uri.getUserInfo() != null) {
                throw new IllegalArgumentException(wrong);
            }
            return uri;
        } catch (IllegalArgumentException problem) {
            throw new IllegalArgumentException(wrong, problem);
        }
    }

    /** Closes all connections; those in use as soon as their calls end. */
    @Override
    public void close() {
        synchronized (idle) {
            isClosed = true;
            idle.forEach(Wire::close);
            idle.clear();
        }
    }

    // ---- inference ---------------------------------------------------------------------------------------

    /** One row for each offset, where a bag of indices begins. */
    public Rows offsets(String model, long[] indices, long[] offsets, Query query) throws IOException {
        return pool(model, query, Tensor.of("indices", indices), Tensor.of("offsets", offsets));
    }

    /** One row for each bag; all bags have equally many indices. */
    public Rows packed(String model, long[] indices, int bags, Query query) throws IOException {
        if (bags < 0 || (bags == 0 ? indices.length > 0 : indices.length % bags != 0)) {
            throw new IllegalArgumentException(indices.length + " indices are not as many for each of " + bags + " bags");
        }
        return pool(model, query, Tensor.of("indices", indices, bags, bags == 0 ? 0 : indices.length / bags));
    }

    /** One row for each segment up to numSegments; segmentIds say where each index belongs. */
    public Rows segments(String model, long[] indices, long[] segmentIds, long numSegments, Query query)
            throws IOException {
        return pool(model, query, Tensor.of("indices", indices), Tensor.of("segment_ids", segmentIds),
                Tensor.of("num_segments", new long[] {numSegments}));
    }

    private Rows pool(String model, Query query, Tensor... inputs) throws IOException {
        List<Tensor> all = new ArrayList<>(List.of(inputs));
        if (query != null && query.weights != null) {
            all.add(Tensor.of("per_sample_weights", query.weights, inputs[0].shape));
        }
        if (query != null && query.defaultIndex != null) {
            all.add(Tensor.of("default_index", new long[] {query.defaultIndex}));
        }
        return infer(model, all, query).outputs.get(0).rows();
    }

    /** Returns the rows of all features of a collection. The arguments have KeyedJaggedTensor's layout: values feature
     * by feature in the configured order, and the number of values of each bag. */
    public Map<String, Rows> kjt(String model, long[] values, long[] lengths, Query query) throws IOException {
        List<Tensor> inputs = new ArrayList<>(List.of(Tensor.of("values", values), Tensor.of("lengths", lengths)));
        if (query != null && query.weights != null) {
            inputs.add(Tensor.of("weights", query.weights));
        }
        return byName(infer(model, inputs, query));
    }

    /** The rows of some features of a collection, or of all. */
    public Map<String, Rows> collection(String model, Map<String, Bags> features, Query query) throws IOException {
        List<Tensor> inputs = new ArrayList<>();
        features.forEach((feature, bags) -> {
            inputs.add(Tensor.of(feature + ".indices", bags.indices));
            inputs.add(Tensor.of(feature + ".offsets", bags.offsets));
            if (bags.weights != null) {
                inputs.add(Tensor.of(feature + ".per_sample_weights", bags.weights));
            }
        });
        return byName(infer(model, inputs, query));
    }

    private static Map<String, Rows> byName(Answer answer) {
        Map<String, Rows> features = new LinkedHashMap<>();
        answer.outputs.forEach(output -> features.put(output.name, output.rows()));
        return features;
    }

    /** Any tensors. */
    public Answer infer(String model, List<Tensor> inputs, Query query) throws IOException {
        Map<String, Object> head = new LinkedHashMap<>();
        Map<String, Object> parameters = new LinkedHashMap<>(Map.of("binary_data_output", true));
        String path = modelPath(model);
        if (query != null) {
            path += query.version == null ? "" : "/versions/" + query.version;
            put(head, "id", query.requestId);
            put(head, "outputs", query.outputs == null ? null
                    : query.outputs.stream().map(output -> Map.of("name", output)).toList());
            put(parameters, "reduction", query.reduction);
            put(parameters, "padding_idx", query.paddingIdx == null ? null : exact(query.paddingIdx));
            put(parameters, "include_last_offset", query.includeLastOffset);
            put(parameters, "output_datatype", query.outputDatatype);
            put(parameters, "output_row_format", query.outputRowFormat);
            put(parameters, "missing", query.missing);
            put(parameters, "out_of_range", query.outOfRange);
            put(parameters, "timeout", query.timeout == null ? null : query.timeout.toNanos() / 1000);
            put(parameters, "explain", query.explain ? true : null);
        }
        Reply reply = send(path + "/infer", inputs, head, parameters);
        try {
            return answerOf(reply);
        } catch (RuntimeException problem) { // JSON of another form than an answer
            throw broken("the answer is not understood", problem);
        }
    }

    private static void put(Map<String, Object> into, String name, Object value) {
        if (value != null) {
            into.put(name, value);
        }
    }

    /** A key as JSON's numbers hold it, or as a text of digits. */
    private static Object exact(long key) {
        return key > -FIRST_INEXACT && key < FIRST_INEXACT ? (Object) key : Long.toString(key);
    }

    private static String modelPath(String model) {
        return "/v2/models/" + URLEncoder.encode(model, StandardCharsets.UTF_8).replace("+", "%20");
    }

    private Reply send(String path, List<Tensor> inputs, Map<String, Object> head, Map<String, Object> parameters)
            throws IOException {
        List<Object> described = new ArrayList<>();
        for (Tensor input : inputs) {
            if (input.rowFormat != null) {
                throw new IllegalArgumentException("'" + input.name + "' has rows in the format '" + input.rowFormat
                        + "', which an input has not: send its rows()");
            }
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("name", input.name);
            one.put("datatype", input.datatype);
            one.put("shape", input.shape);
            one.put("parameters", Map.of("binary_data_size", input.data.length));
            described.add(one);
        }
        head.put("inputs", described);
        head.put("parameters", parameters);
        return call(new Request("POST", path, Json.write(head), inputs, true, false));
    }

    private static Answer answerOf(Reply reply) {
        Map<?, ?> head = (Map<?, ?>) Json.read(reply.json());
        List<Tensor> outputs = new ArrayList<>();
        int at = reply.headerBytes;
        for (Object each : (List<?>) head.get("outputs")) {
            Map<?, ?> output = (Map<?, ?>) each;
            Map<?, ?> told = (Map<?, ?>) output.get("parameters");
            long size = (Long) told.get("binary_data_size");
            Object elements = told.get("row_elements");
            if (size < 0 || size > reply.body.length - at) {
                throw new IllegalArgumentException("an output of " + size + " bytes, of which there are "
                        + (reply.body.length - at));
            }
            int bytes = (int) size;
            long[] shape = ((List<?>) output.get("shape")).stream().mapToLong(length -> (Long) length).toArray();
            outputs.add(new Tensor((String) output.get("name"), (String) output.get("datatype"), shape,
                    Arrays.copyOfRange(reply.body, at, at + bytes), (String) told.get("row_format"),
                    elements == null ? 0 : asInt("row_elements", (Long) elements)));
            at += bytes;
        }
        Map<?, ?> parameters = head.get("parameters") instanceof Map<?, ?> some ? some : Map.of();
        List<Object> warnings = new ArrayList<>();
        if (parameters.get("warnings") instanceof List<?> texts) {
            warnings.addAll(texts);
        }
        return new Answer(outputs, (String) head.get("model_version"), (String) head.get("id"), warnings,
                parameters.get("explain"));
    }

    // ---- changes -----------------------------------------------------------------------------------------

    /** Puts rows [n * width] in the place of those at the indices [n]; with a token of scope admin, or on the admin
     * socket. `sequence` is the batch's number, 0: the server counts on; with `firstSequence` above 0 it stands for all
     * updates from that number on. Sent again with its number it changes nothing. */
    public Applied update(String model, long[] indices, float[] rows, long firstSequence, long sequence)
            throws IOException {
        return change(model, "indices", indices, rows, firstSequence, sequence);
    }

    /** Updates rows of a table with keys, which are patterns of 64 bits. */
    public Applied updateKeys(String model, long[] keys, float[] rows, long firstSequence, long sequence)
            throws IOException {
        return change(model, "keys", keys, rows, firstSequence, sequence);
    }

    /** Removes keys; otherwise as updateKeys. */
    public Applied deleteKeys(String model, long[] keys, long firstSequence, long sequence) throws IOException {
        return change(model, "keys", keys, null, firstSequence, sequence);
    }

    private Applied change(String model, String kind, long[] ids, float[] rows, long firstSequence, long sequence)
            throws IOException {
        List<Tensor> inputs = new ArrayList<>(List.of(Tensor.of(kind, ids)));
        Map<String, Object> parameters = new LinkedHashMap<>();
        if (rows == null) {
            parameters.put("delete", true);
        } else if (ids.length == 0 ? rows.length > 0 : rows.length % ids.length != 0) {
            throw new IllegalArgumentException(rows.length + " numbers are not as many for each of " + ids.length + " ids");
        } else {
            inputs.add(Tensor.of("rows", rows, ids.length, ids.length == 0 ? 0 : rows.length / ids.length));
        }
        put(parameters, "sequence", sequence == 0 ? null : sequence);
        put(parameters, "first_sequence", firstSequence == 0 ? null : firstSequence);
        Map<?, ?> said = (Map<?, ?>) Json.read(send(modelPath(model) + "/rows", inputs, new LinkedHashMap<>(),
                parameters).json());
        return new Applied((Long) said.get("sequence"), (Boolean) said.get("applied"), (Long) said.get("rows"));
    }

    /** Loads models in one step, all or none, and returns when they are served. */
    public void load(String... models) throws IOException {
        control("load", Map.of("models", Arrays.stream(models).map(model -> Map.of("name", model)).toList()));
    }

    /** Loads a version of a model, and makes it the one that is served by default. */
    public void loadVersion(String model, long version) throws IOException {
        control("load", Map.of("models", List.of(Map.of("name", model, "version", Long.toString(version)))));
    }

    /** Unloads a model; also the collections over it, if that is asked for. */
    public void unload(String model, boolean dependents) throws IOException {
        control("models/" + modelPath(model).substring("/v2/models/".length()) + "/unload",
                Map.of("parameters", Map.of("unload_dependents", dependents)));
    }

    /** Every version of every model: maps of name, version, state and reason. */
    public List<?> index() throws IOException {
        return (List<?>) control("index", Map.of());
    }

    private Object control(String path, Map<String, Object> body) throws IOException {
        return Json.read(call(new Request("POST", "/v2/repository/" + path, Json.write(body), List.of(), false, false))
                .json());
    }

    // ---- asking around -----------------------------------------------------------------------------------

    /** Returns whether the server accepts requests now, or the model if `model` is not null. */
    public boolean isReady(String model) throws IOException {
        String path = model == null ? "/v2/health/ready" : modelPath(model) + "/ready";
        return call(new Request("GET", path, new byte[0], List.of(), false, true)).status == 200;
    }

    /** The models' names. */
    public List<?> models() throws IOException {
        return (List<?>) ((Map<?, ?>) get("/v2/models")).get("models");
    }

    /** Returns the model's versions, inputs and outputs. `parameters` has the properties of its table. */
    public Map<?, ?> metadata(String model) throws IOException {
        return (Map<?, ?>) get(modelPath(model));
    }

    private Object get(String path) throws IOException {
        return Json.read(call(new Request("GET", path, new byte[0], List.of(), false, false)).json());
    }

    // ---- one call ----------------------------------------------------------------------------------------

    private record Request(String method, String path, byte[] header, List<Tensor> tensors, boolean isBinary,
            boolean isProbe) {}

    private record Reply(int status, String retryAfter, int headerBytes, byte[] body) {
        String json() {
            return new String(body, 0, headerBytes, StandardCharsets.UTF_8);
        }
    }

    private Reply call(Request request) throws IOException {
        for (int made = 0;; made++) {
            boolean isLast = made >= options.retries || request.isProbe;
            Reply reply = null;
            try {
                reply = attempt(request);
                if (reply.status == 200 || (request.isProbe && reply.status == 503)) {
                    return reply;
                }
                if (reply.status != 503 || reply.retryAfter == null || isLast) {
                    throw failureOf(reply);
                }
            } catch (NotConnected problem) {
                if (isLast) {
                    throw broken("cannot connect to " + name, problem.getCause());
                }
            }
            pause(made, reply);
        }
    }

    private static Failure failureOf(Reply reply) {
        String text = "status " + reply.status;
        String code = "";
        try {
            Map<?, ?> said = (Map<?, ?>) Json.read(reply.json());
            text = (String) said.get("error");
            code = said.get("code") instanceof String given ? given : "";
        } catch (RuntimeException problem) { // not JSON, such as the error page of a proxy
            text += ": " + reply.json();
        }
        return new Failure(Kind.of(reply.status), reply.status, code, text, null);
    }

    /** As long as the server says, and a random time on top that doubles. */
    private static void pause(int made, Reply reply) throws IOException {
        long ms = ThreadLocalRandom.current().nextLong(FIRST_JITTER_MS << Math.min(made, 5));
        if (reply != null && reply.retryAfter.matches("\\d{1,9}")) {
            ms += Math.min(1000 * Long.parseLong(reply.retryAfter), LONGEST_WAIT_MS);
        }
        try {
            Thread.sleep(ms);
        } catch (InterruptedException problem) {
            throw interrupted();
        }
    }

    private static IOException interrupted() {
        Thread.currentThread().interrupt();
        return broken("the call was given up", new InterruptedIOException("interrupted"));
    }

    /** No connection was made, so that nothing was sent. */
    private static final class NotConnected extends Exception {
        private static final long serialVersionUID = 1;

        NotConnected(IOException cause) {
            super(cause);
        }
    }

    private Reply attempt(Request request) throws IOException, NotConnected {
        long deadline = System.nanoTime() + options.timeout.toNanos();
        try {
            if (!free.tryAcquire(options.timeout.toNanos(), TimeUnit.NANOSECONDS)) {
                throw broken("while waiting for a connection", new SocketTimeoutException());
            }
        } catch (InterruptedException problem) {
            throw interrupted();
        }
        Wire wire = null;
        try {
            wire = connect(deadline);
            Reply reply = exchange(wire, request);
            wire = keep(wire);
            return reply;
        } catch (InterruptedIOException problem) {
            throw problem instanceof SocketTimeoutException ? broken("no answer came", problem) : interrupted();
        } catch (Failure problem) {
            throw problem;
        } catch (IOException problem) {
            throw broken("the connection broke", problem);
        } finally {
            if (wire != null) {
                wire.close();
            }
            free.release();
        }
    }

    /** Keeps an open connection and returns null, or returns a connection that the caller must close. */
    private Wire keep(Wire wire) {
        synchronized (idle) {
            if (isClosed || !wire.stays) {
                return wire;
            }
            wire.since = System.nanoTime();
            idle.push(wire);
            return null;
        }
    }

    private Wire connect(long deadline) throws NotConnected {
        for (Wire kept = takeIdle(); kept != null; kept = takeIdle()) {
            if (kept.isOpen()) {
                kept.deadline = deadline;
                return kept;
            }
            kept.close();
        }
        try {
            SocketAddress to = place != null ? place : new InetSocketAddress(name, port);
            return ssl == null ? new ChannelWire(to, deadline) : new SecureWire(ssl, to, name, deadline);
        } catch (IOException | RuntimeException problem) { // a name that is not known is the latter
            throw new NotConnected(problem instanceof IOException known ? known : new IOException(problem.toString()));
        }
    }

    private Wire takeIdle() {
        synchronized (idle) {
            if (isClosed) {
                throw new IllegalStateException("the client is closed");
            }
            return idle.poll();
        }
    }

    private Reply exchange(Wire wire, Request request) throws IOException {
        wire.write(head(request), request.tensors);
        String line = wire.readLine();
        if (!line.startsWith("HTTP/1.") || line.length() < 12) {
            throw new IOException("that is not HTTP/1.1");
        }
        int status = number(line.substring(9, 12), 10);
        wire.stays = line.startsWith("HTTP/1.1");
        String length = null, headerLength = null, retryAfter = null;
        boolean isChunked = false;
        while (!(line = wire.readLine()).isEmpty()) {
            int colon = Math.max(line.indexOf(':'), 0);
            String value = line.substring(Math.min(colon + 1, line.length())).strip();
            switch (line.substring(0, colon).toLowerCase(Locale.ROOT)) {
                case "content-length" -> length = value;
                case HEADER_LENGTH -> headerLength = value;
                case "retry-after" -> retryAfter = value;
                case "transfer-encoding" -> isChunked = value.equalsIgnoreCase("chunked");
                case "connection" -> wire.stays &= !value.equalsIgnoreCase("close");
                default -> { }
            }
        }
        byte[] body = isChunked ? wire.readChunks() : wire.read(number(length == null ? "0" : length, 10));
        int headerBytes = headerLength == null ? body.length : number(headerLength, 10);
        if (headerBytes > body.length) {
            throw new IOException("an answer of " + body.length + " bytes has " + headerBytes + " bytes of JSON");
        }
        return new Reply(status, retryAfter, headerBytes, body);
    }

    /** Returns a length of the answer. Throws if the text is none, or more than an array of Java holds. */
    private static int number(String text, int base) throws IOException {
        try {
            return asInt("a part of the answer", Long.parseUnsignedLong(text, base));
        } catch (NumberFormatException problem) {
            throw new IOException("'" + text + "' is no length", problem);
        } catch (IllegalArgumentException problem) {
            throw new IOException(problem.getMessage(), problem);
        }
    }

    /** Returns a size as an int. Throws if it is more than an array of Java holds. */
    private static int asInt(String what, long size) {
        if (size < 0 || size > LARGEST_ARRAY) {
            throw new IllegalArgumentException(what + " has the size " + Long.toUnsignedString(size)
                    + "; this client takes at most " + LARGEST_ARRAY);
        }
        return (int) size;
    }

    private byte[] head(Request request) {
        StringBuilder head = new StringBuilder(256);
        head.append(request.method).append(' ').append(request.path).append(" HTTP/1.1\r\nHost: ").append(host);
        if (options.token != null) {
            head.append("\r\nAuthorization: Bearer ").append(options.token);
        }
        if (request.isBinary) {
            head.append("\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: ")
                    .append(request.header.length);
        }
        if (request.method.equals("POST")) {
            long bytes = request.header.length + request.tensors.stream().mapToLong(t -> t.data.length).sum();
            head.append("\r\nContent-Length: ").append(bytes);
        }
        byte[] first = head.append("\r\n\r\n").toString().getBytes(StandardCharsets.ISO_8859_1);
        byte[] all = Arrays.copyOf(first, first.length + request.header.length);
        System.arraycopy(request.header, 0, all, first.length, request.header.length);
        return all;
    }

    // ---- connections -------------------------------------------------------------------------------------

    /** A connection, with what was read of it and not taken yet. */
    private abstract static class Wire {
        long deadline;
        long since;
        boolean stays;
        final ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 16).limit(0);

        /** Reads what there is into the buffer, at least one byte, until the deadline. */
        abstract void fill() throws IOException;

        abstract void write(byte[] head, List<Tensor> tensors) throws IOException;

        /** Returns whether the connection is still open. */
        abstract boolean isOpen();

        abstract void close();

        String readLine() throws IOException {
            StringBuilder line = new StringBuilder();
            while (true) {
                if (!buffer.hasRemaining()) {
                    fill();
                }
                char letter = (char) (buffer.get() & 0xff);
                if (letter == '\n') {
                    int end = line.length();
                    return line.substring(0, end > 0 && line.charAt(end - 1) == '\r' ? end - 1 : end);
                }
                if (line.append(letter).length() > 1 << 16) {
                    throw new IOException("a header without an end");
                }
            }
        }

        byte[] read(int bytes) throws IOException {
            byte[] all = new byte[bytes];
            for (int used = 0; used < bytes;) {
                if (!buffer.hasRemaining()) {
                    fill();
                }
                int some = Math.min(buffer.remaining(), bytes - used);
                buffer.get(all, used, some);
                used += some;
            }
            return all;
        }

        byte[] readChunks() throws IOException {
            byte[] all = new byte[0];
            for (int size; (size = number(readLine().split(";")[0].strip(), 16)) > 0; readLine()) {
                int before = all.length;
                all = Arrays.copyOf(all, number(Long.toString((long) before + size), 10));
                byte[] chunk = read(size);
                System.arraycopy(chunk, 0, all, before, size);
            }
            while (!readLine().isEmpty()) { } // trailers
            return all;
        }

        /** Never 0, which would be for ever. */
        long leftMs() throws IOException {
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left < 0) {
                throw new SocketTimeoutException();
            }
            return left + 1;
        }
    }

    /** TCP, or a Unix-domain socket. */
    private static final class ChannelWire extends Wire {
        private final SocketChannel channel;
        private final Selector selector;
        private final SelectionKey key;

        ChannelWire(SocketAddress to, long deadline) throws IOException {
            this.deadline = deadline;
            boolean isUnix = to instanceof UnixDomainSocketAddress;
            channel = isUnix ? SocketChannel.open(StandardProtocolFamily.UNIX) : SocketChannel.open();
            selector = Selector.open();
            try {
                channel.configureBlocking(false);
                if (!isUnix) {
                    channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
                }
                key = channel.register(selector, SelectionKey.OP_CONNECT);
                if (!channel.connect(to)) {
                    while (!channel.finishConnect()) {
                        await(SelectionKey.OP_CONNECT);
                    }
                }
            } catch (IOException | RuntimeException problem) {
                close();
                throw problem;
            }
        }

        private void await(int what) throws IOException {
            if (key.interestOps() != what) {
                key.interestOps(what);
            }
            selector.selectedKeys().clear();
            selector.select(leftMs());
            if (Thread.interrupted()) {
                throw new InterruptedIOException();
            }
        }

        @Override
        void fill() throws IOException {
            boolean wasFull = buffer.limit() == buffer.capacity(); // then there is probably more
            buffer.clear().limit(0);
            ByteBuffer room = buffer.duplicate().clear();
            int got = wasFull ? channel.read(room) : 0;
            while (got == 0) {
                await(SelectionKey.OP_READ);
                got = channel.read(room);
            }
            if (got < 0) {
                throw new EOFException("the server closed it");
            }
            buffer.limit(got);
        }

        @Override
        void write(byte[] head, List<Tensor> tensors) throws IOException {
            ByteBuffer[] parts = new ByteBuffer[tensors.size() + 1];
            parts[0] = ByteBuffer.wrap(head);
            for (int i = 1; i < parts.length; i++) {
                parts[i] = ByteBuffer.wrap(tensors.get(i - 1).data);
            }
            for (int first = 0; first < parts.length;) {
                if (parts[first].hasRemaining()) {
                    if (channel.write(parts, first, parts.length - first) == 0) {
                        await(SelectionKey.OP_WRITE);
                    }
                } else {
                    first++;
                }
            }
        }

        @Override
        boolean isOpen() {
            try {
                return !buffer.hasRemaining() && channel.read(buffer.duplicate().clear()) == 0;
            } catch (IOException problem) {
                return false;
            }
        }

        @Override
        void close() {
            try {
                selector.close();
                channel.close();
            } catch (IOException ignored) {
                stays = false;
            }
        }
    }

    /** TLS. */
    private static final class SecureWire extends Wire {
        private final SSLSocket socket;
        private final InputStream input;
        private final OutputStream output;

        SecureWire(SSLContext context, SocketAddress to, String host, long deadline) throws IOException {
            this.deadline = deadline;
            Socket plain = new Socket();
            try {
                plain.connect(to, (int) leftMs());
                plain.setTcpNoDelay(true);
                socket = (SSLSocket) context.getSocketFactory().createSocket(plain, host, plain.getPort(), true);
                SSLParameters parameters = socket.getSSLParameters();
                parameters.setEndpointIdentificationAlgorithm("HTTPS");
                socket.setSSLParameters(parameters);
                socket.setSoTimeout((int) leftMs());
                socket.startHandshake();
                input = socket.getInputStream();
                output = socket.getOutputStream();
            } catch (IOException problem) {
                plain.close();
                throw problem;
            }
        }

        @Override
        void fill() throws IOException {
            byte[] some = new byte[buffer.capacity()];
            socket.setSoTimeout((int) leftMs());
            int got = input.read(some);
            if (got < 0) {
                throw new EOFException("the server closed it");
            }
            buffer.clear().put(some, 0, got).flip();
        }

        @Override
        void write(byte[] head, List<Tensor> tensors) throws IOException {
            output.write(head);
            for (Tensor tensor : tensors) {
                output.write(tensor.data);
            }
        }

        /** After a while without a request, a read that waits for 1 ms tells. */
        @Override
        boolean isOpen() {
            if (buffer.hasRemaining() || System.nanoTime() - since < LOOKED_AT_AFTER_NS) {
                return !buffer.hasRemaining();
            }
            try {
                socket.setSoTimeout(1);
                input.read();
                return false;
            } catch (SocketTimeoutException problem) {
                return true;
            } catch (IOException problem) {
                return false;
            }
        }

        @Override
        void close() {
            try {
                socket.close();
            } catch (IOException ignored) {
                stays = false;
            }
        }
    }

    // ---- JSON --------------------------------------------------------------------------------------------

    /** Map, List, long[], String, Boolean, Long, Double and null. */
    private static final class Json {
        private final String text;
        private int at;

        private Json(String text) {
            this.text = text;
        }

        static byte[] write(Object value) {
            StringBuilder out = new StringBuilder(256);
            write(value, out);
            return out.toString().getBytes(StandardCharsets.UTF_8);
        }

        private static void write(Object value, StringBuilder out) {
            if (value instanceof Map<?, ?> map) {
                String before = "{";
                for (Map.Entry<?, ?> entry : map.entrySet()) {
                    quote((String) entry.getKey(), out.append(before));
                    write(entry.getValue(), out.append(':'));
                    before = ",";
                }
                out.append(map.isEmpty() ? "{}" : "}");
            } else if (value instanceof long[] numbers) {
                out.append(Arrays.toString(numbers));
            } else if (value instanceof Collection<?> list) {
                String before = "[";
                for (Object each : list) {
                    write(each, out.append(before));
                    before = ",";
                }
                out.append(list.isEmpty() ? "[]" : "]");
            } else if (value instanceof String string) {
                quote(string, out);
            } else {
                out.append(value);
            }
        }

        private static void quote(String string, StringBuilder out) {
            out.append('"');
            for (int i = 0; i < string.length(); i++) {
                char letter = string.charAt(i);
                if (letter == '"' || letter == '\\') {
                    out.append('\\').append(letter);
                } else if (letter < 0x20) {
                    out.append(String.format("\\u%04x", (int) letter));
                } else {
                    out.append(letter);
                }
            }
            out.append('"');
        }

        /** Throws IllegalArgumentException, or another of that kind where the text ends early. */
        static Object read(String text) {
            Json json = new Json(text);
            Object value = json.value(0);
            if (json.next() != 0) {
                throw json.wrong();
            }
            return value;
        }

        private IllegalArgumentException wrong() {
            return new IllegalArgumentException("no JSON at character " + at);
        }

        /** The next character that is no space, not taken; 0 at the end. */
        private char next() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
            return at < text.length() ? text.charAt(at) : 0;
        }

        private boolean takes(char wanted) {
            boolean is = next() == wanted;
            at += is ? 1 : 0;
            return is;
        }

        private void expect(char wanted) {
            if (!takes(wanted)) {
                throw wrong();
            }
        }

        private Object value(int depth) {
            if (depth > 100) {
                throw wrong();
            }
            return switch (next()) {
                case '{' -> map(depth);
                case '[' -> list(depth);
                case '"' -> string();
                default -> word();
            };
        }

        private Map<String, Object> map(int depth) {
            Map<String, Object> map = new LinkedHashMap<>();
            expect('{');
            if (takes('}')) {
                return map;
            }
            do {
                next();
                String name = string();
                expect(':');
                map.put(name, value(depth + 1));
            } while (takes(','));
            expect('}');
            return map;
        }

        private List<Object> list(int depth) {
            List<Object> list = new ArrayList<>();
            expect('[');
            if (takes(']')) {
                return list;
            }
            do {
                list.add(value(depth + 1));
            } while (takes(','));
            expect(']');
            return list;
        }

        private String string() {
            expect('"');
            StringBuilder string = new StringBuilder();
            for (char letter; (letter = text.charAt(at++)) != '"';) {
                string.append(letter == '\\' ? escape() : letter);
            }
            return string.toString();
        }

        private char escape() {
            char letter = text.charAt(at++);
            if (letter == 'u') {
                at += 4;
                return (char) Integer.parseInt(text, at - 4, at, 16);
            }
            int place = "bfnrt".indexOf(letter);
            return place < 0 ? letter : "\b\f\n\r\t".charAt(place);
        }

        private Object word() {
            int start = at;
            while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String word = text.substring(start, at);
            return switch (word) {
                case "true" -> true;
                case "false" -> false;
                case "null" -> null;
                default -> isWhole(word) ? (Object) Long.valueOf(word) : (Object) Double.valueOf(word);
            };
        }

        private static boolean isWhole(String word) {
            int digits = word.startsWith("-") ? 1 : 0;
            return word.length() > digits && word.length() < 19
                    && word.chars().skip(digits).allMatch(letter -> letter >= '0' && letter <= '9');
        }
    }
}
