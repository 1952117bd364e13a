// Package bagserve asks bagserve, an inference server for embedding bags: one file, on the standard library.
//
//	client, err := bagserve.Open("127.0.0.1:8000", bagserve.Options{})
//	rows, err := client.Offsets(ctx, "items", []int64{7, 99999, 7, 12345}, []int64{0, 3}, nil)
//	both, err := client.KJT(ctx, "ranker", []int64{0, 2, 4, 1, 7}, []int64{2, 0, 1, 1, 1, 0}, nil)
//
// Tensors travel as raw bytes both ways. A client keeps up to Options.Connections connections, and any number
// of goroutines may use it at once; calls beyond that wait for each other.
//
// Errors are *Error and have the text of the server. errors.Is(err, bagserve.NotFound) tests for a kind of error. The
// client sends a call again, up to Options.Retries times, if it could not connect or if the server answers 503 with
// Retry-After. It never repeats a call of which something was sent, since the server may be at work on it.
package bagserve

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	headerLength   = "Inference-Header-Content-Length"
	longestWait    = 5 * time.Second
	firstJitter    = 100 * time.Millisecond
	firstInexact   = 1 << 53 // from here on JSON's numbers do not hold every integer
	defaultTimeout = 30 * time.Second
)

// ---- errors --------------------------------------------------------------------------------------------

// Kind says what is wrong, and is itself an error that errors.Is finds in an *Error.
type Kind string

const (
	BadRequest       Kind = "bad_request"       // 400, 415: the request itself, which will be wrong again
	Unauthorized     Kind = "unauthorized"      // 401, 403: no token, an unknown one, or one of another scope
	NotFound         Kind = "not_found"         // 404: no such model or version
	Conflict         Kind = "conflict"          // 409: a change that does not fit what is served
	TooLarge         Kind = "too_large"         // 413: more than the server's limit
	Unavailable      Kind = "unavailable"       // 503, also after the retries
	StorageFull      Kind = "storage_full"      // 507: no room on the journal's disk, or no spare row
	ServerError      Kind = "server_error"      // any other status
	ConnectionFailed Kind = "connection_failed" // no connection, or no whole answer
)

func (kind Kind) Error() string { return string(kind) }

var kinds = map[int]Kind{400: BadRequest, 415: BadRequest, 401: Unauthorized, 403: Unauthorized, 404: NotFound,
	409: Conflict, 413: TooLarge, 503: Unavailable, 507: StorageFull}

// Error is the error of a call that failed.
type Error struct {
	Kind   Kind
	Status int    // status of HTTP; 0: no answer
	Text   string // the server's words
	Code   string // the kind of the error, as PROTOCOL.md lists them; empty: the server does not say it
	cause  error
}

func (e *Error) Error() string { return e.Text }

// Is makes errors.Is(err, bagserve.NotFound) work.
func (e *Error) Is(target error) bool { return target == error(e.Kind) }

// Unwrap is what the system or the context said.
func (e *Error) Unwrap() error { return e.cause }

func errorOf(status int, body []byte) error {
	var said struct{ Error, Code string }
	if json.Unmarshal(body, &said) != nil || said.Error == "" {
		said.Error = fmt.Sprintf("status %d", status)
	}
	kind, known := kinds[status]
	if !known {
		kind = ServerError
	}
	return &Error{Kind: kind, Status: status, Text: said.Error, Code: said.Code}
}

func connectionError(what string, cause error) *Error {
	if errors.Is(cause, os.ErrDeadlineExceeded) {
		cause = context.DeadlineExceeded
	}
	return &Error{Kind: ConnectionFailed, Text: fmt.Sprintf("%s: %v", what, cause), cause: cause}
}

// ---- a client ------------------------------------------------------------------------------------------

// Options of a client; each may be left out.
type Options struct {
	Token       string        // sent with every call
	Timeout     time.Duration // maximum duration of one attempt, beside its context's deadline; 0: 30 s
	Retries     int           // 0: two; below: none
	Connections int           // kept at most; 0: eight
	TLS         *tls.Config   // how https:// is verified; nil: by the system's certificates
}

// Client asks one server.
type Client struct {
	network, place, host, token string
	tls                         *tls.Config
	timeout                     time.Duration
	retries                     int
	free                        chan struct{} // has room for those in use

	mutex  sync.Mutex
	idle   []*connection
	closed bool
}

type connection struct {
	net.Conn
	reader *bufio.Reader
}

// Open makes a client of HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:///PATH. It connects when it is asked.
func Open(address string, options Options) (*Client, error) {
	client := &Client{network: "tcp", timeout: options.Timeout, retries: options.Retries, token: options.Token}
	if err := client.setPlace(address, options.TLS); err != nil {
		return nil, err
	}
	for _, letter := range []byte(options.Token) {
		if letter < 0x21 || letter > 0x7e {
			return nil, errors.New("a token must be of visible ASCII characters")
		}
	}
	if client.timeout <= 0 {
		client.timeout = defaultTimeout
	}
	if client.retries == 0 {
		client.retries = 2
	}
	if options.Connections <= 0 {
		options.Connections = 8
	}
	client.free = make(chan struct{}, options.Connections)
	return client, nil
}

func (client *Client) setPlace(address string, config *tls.Config) error {
	if path := strings.TrimPrefix(address, "unix://"); path != address && strings.Trim(path, "/") != "" {
		client.network, client.place, client.host = "unix", path, "localhost"
		return nil
	}
	scheme, host := "http", address
	if before, after, found := strings.Cut(address, "://"); found {
		scheme, host = before, after
	}
	host = strings.TrimSuffix(host, "/")
	place, err := url.Parse("//" + host)
	if err != nil || place.Host != host || place.Hostname() == "" || (scheme != "http" && scheme != "https") {
		return fmt.Errorf("'%s' is not HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:///PATH", address)
	}
	port := place.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	client.place, client.host = net.JoinHostPort(place.Hostname(), port), host
	if scheme == "https" {
		client.tls = &tls.Config{}
		if config != nil {
			client.tls = config.Clone()
		}
		if client.tls.ServerName == "" {
			client.tls.ServerName = place.Hostname()
		}
	}
	return nil
}

// Close closes all connections; those in use as soon as their calls end.
func (client *Client) Close() {
	client.mutex.Lock()
	defer client.mutex.Unlock()
	client.closed = true
	for _, kept := range client.idle {
		kept.Close()
	}
	client.idle = nil
}

// ---- one call ------------------------------------------------------------------------------------------

type request struct {
	method, path string
	header       []byte   // JSON
	tensors      [][]byte // raw bytes behind it
	isBinary     bool
	isProbe      bool // asked once, and 503 is an answer
}

type reply struct {
	status     int
	headerSize int // length of the JSON in the body; that of the whole body if there are no tensors
	body       []byte
	retryAfter string
}

func (client *Client) do(ctx context.Context, asked *request) (*reply, error) {
	for attempt := 0; ; attempt++ {
		got, sent, err := client.attempt(ctx, asked)
		isLast := attempt >= client.retries || asked.isProbe
		if err == nil && (got.status == http.StatusOK || asked.isProbe && got.status == http.StatusServiceUnavailable) {
			return got, nil
		}
		if err == nil && (got.status != http.StatusServiceUnavailable || got.retryAfter == "" || isLast) {
			return nil, errorOf(got.status, got.body)
		}
		if err != nil && (sent || isLast || ctx.Err() != nil) {
			return nil, err
		}
		if waited := wait(ctx, attempt, got); waited != nil {
			return nil, connectionError("while waiting to ask again", waited)
		}
	}
}

// wait sleeps as long as the server says, and a random time on top that doubles.
func wait(ctx context.Context, attempt int, got *reply) error {
	pause := randomly(firstJitter << uint(min(attempt, 5)))
	if got != nil {
		said, _ := strconv.ParseFloat(got.retryAfter, 64)
		pause += time.Duration(math.Min(math.Max(said, 0), longestWait.Seconds()) * float64(time.Second))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// randomly gives a time below most; without randomness, all of it.
func randomly(most time.Duration) time.Duration {
	var number [8]byte
	if _, err := rand.Read(number[:]); err != nil {
		return most
	}
	return time.Duration(binary.LittleEndian.Uint64(number[:]) % uint64(most))
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// attempt sends a request once; `sent` is whether the server may have seen any of it.
func (client *Client) attempt(ctx context.Context, asked *request) (got *reply, sent bool, err error) {
	select {
	case client.free <- struct{}{}:
	case <-ctx.Done():
		return nil, false, connectionError("while waiting for a connection", ctx.Err())
	}
	defer func() { <-client.free }()
	deadline := time.Now().Add(client.timeout)
	if sooner, has := ctx.Deadline(); has && sooner.Before(deadline) {
		deadline = sooner
	}
	used, err := client.connect(ctx, deadline)
	if err != nil {
		return nil, false, err
	}
	stop := watch(ctx, used, deadline)
	got, keeps, err := client.exchange(used, asked)
	if stop() {
		err = connectionError("the call was given up", ctx.Err())
	}
	if err == nil && keeps {
		client.keep(used)
	} else {
		used.Close()
	}
	return got, true, err
}

// watch gives the connection its deadline, and ends it when the context does; the function that it returns
// stops that, and says whether it had come to it.
func watch(ctx context.Context, used *connection, deadline time.Time) func() bool {
	used.SetDeadline(deadline)
	if ctx.Done() == nil {
		return func() bool { return false }
	}
	answered, ended := make(chan struct{}), make(chan bool)
	go func() {
		select {
		case <-ctx.Done():
			used.SetDeadline(time.Unix(1, 0))
			<-answered
			ended <- true
		case <-answered:
			ended <- false
		}
	}()
	return func() bool {
		close(answered)
		return <-ended
	}
}

func (client *Client) connect(ctx context.Context, deadline time.Time) (*connection, error) {
	for {
		client.mutex.Lock()
		if client.closed {
			client.mutex.Unlock()
			return nil, errors.New("the client is closed")
		}
		last := len(client.idle) - 1
		if last < 0 {
			client.mutex.Unlock()
			return client.dial(ctx, deadline)
		}
		kept := client.idle[last]
		client.idle = client.idle[:last]
		client.mutex.Unlock()
		if kept.isOpen() {
			return kept, nil
		}
		kept.Close()
	}
}

func (client *Client) dial(ctx context.Context, deadline time.Time) (*connection, error) {
	dialer := &net.Dialer{Deadline: deadline}
	made, err := dialer.DialContext(ctx, client.network, client.place)
	if err == nil && client.tls != nil {
		secure := tls.Client(made, client.tls)
		secure.SetDeadline(deadline)
		if err = secure.HandshakeContext(ctx); err != nil {
			made.Close()
		}
		made = secure
	}
	if err != nil {
		return nil, connectionError("cannot connect to "+client.place, err)
	}
	return &connection{made, bufio.NewReaderSize(made, 16<<10)}, nil
}

// isOpen is whether the server has not closed a kept connection meanwhile, nor said anything unasked.
func (kept *connection) isOpen() bool {
	plain := kept.Conn
	secure, isSecure := plain.(*tls.Conn)
	if isSecure {
		plain = secure.NetConn()
	}
	raw, err := plain.(syscall.Conn).SyscallConn()
	if err != nil || kept.reader.Buffered() > 0 {
		return false
	}
	isOpen := false
	err = raw.Read(func(descriptor uintptr) bool {
		var one [1]byte
		count, _, err := syscall.Recvfrom(int(descriptor), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		isOpen = err == syscall.EAGAIN || (isSecure && err == nil && count > 0)
		return true
	})
	return err == nil && isOpen
}

func (client *Client) keep(used *connection) {
	client.mutex.Lock()
	defer client.mutex.Unlock()
	if client.closed {
		used.Close()
		return
	}
	client.idle = append(client.idle, used)
}

// exchange sends the request, and reads the answer and whether the connection stays.
func (client *Client) exchange(used *connection, asked *request) (*reply, bool, error) {
	buffers := append(net.Buffers{client.head(asked)}, asked.tensors...)
	if _, err := buffers.WriteTo(used.Conn); err != nil {
		return nil, false, connectionError("the connection broke", err)
	}
	answer, err := http.ReadResponse(used.reader, &http.Request{Method: asked.method})
	if err != nil {
		return nil, false, connectionError("no answer came", err)
	}
	var body []byte
	if answer.ContentLength >= 0 {
		body = make([]byte, answer.ContentLength)
		_, err = io.ReadFull(answer.Body, body)
	} else {
		body, err = io.ReadAll(answer.Body)
	}
	if err != nil {
		return nil, false, connectionError("the answer broke off", err)
	}
	got := &reply{answer.StatusCode, len(body), body, answer.Header.Get("Retry-After")}
	if text := answer.Header.Get(headerLength); text != "" {
		if got.headerSize, err = strconv.Atoi(text); err != nil || got.headerSize < 0 || got.headerSize > len(body) {
			return nil, false, connectionError("the answer is not understood", fmt.Errorf("%s: %s", headerLength, text))
		}
	}
	return got, !answer.Close, nil
}

// head is the request up to its tensors, with its JSON.
func (client *Client) head(asked *request) []byte {
	size := len(asked.header)
	for _, tensor := range asked.tensors {
		size += len(tensor)
	}
	head := make([]byte, 0, 300+len(asked.path)+len(client.token)+len(asked.header))
	head = append(head, asked.method+" "+asked.path+" HTTP/1.1\r\nHost: "+client.host+"\r\n"...)
	if client.token != "" {
		head = append(head, "Authorization: Bearer "+client.token+"\r\n"...)
	}
	if asked.isBinary {
		head = append(head, "Content-Type: application/octet-stream\r\n"+headerLength+": "...)
		head = append(strconv.AppendInt(head, int64(len(asked.header)), 10), "\r\n"...)
	}
	if asked.method == http.MethodPost {
		head = append(strconv.AppendInt(append(head, "Content-Length: "...), int64(size), 10), "\r\n"...)
	}
	return append(append(head, "\r\n"...), asked.header...)
}

// ---- tensors -------------------------------------------------------------------------------------------

// Tensor is an input or an output: little-endian bytes, row by row. An output in a row format (Query.OutputRowFormat)
// has UINT8 rows of bytes, which stand for RowElements FP32 numbers each.
type Tensor struct {
	Name, Datatype string
	Shape          []int64
	Data           []byte
	RowFormat      string
	RowElements    int
}

// Int64s makes a tensor of one dimension, or of the shape.
func Int64s(name string, values []int64, shape ...int64) Tensor {
	data := make([]byte, 8*len(values))
	for i, value := range values {
		binary.LittleEndian.PutUint64(data[8*i:], uint64(value))
	}
	return Tensor{Name: name, Datatype: "INT64", Shape: shapeOr(shape, len(values)), Data: data}
}

// Float32s makes a tensor of one dimension, or of the shape.
func Float32s(name string, values []float32, shape ...int64) Tensor {
	data := make([]byte, 4*len(values))
	for i, value := range values {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(value))
	}
	return Tensor{Name: name, Datatype: "FP32", Shape: shapeOr(shape, len(values)), Data: data}
}

func shapeOr(shape []int64, count int) []int64 {
	if len(shape) > 0 {
		return shape
	}
	return []int64{int64(count)}
}

// Float32s are the numbers of an FP32 or BF16 tensor, or those that encoded rows stand for.
func (tensor Tensor) Float32s() ([]float32, error) {
	if tensor.RowFormat != "" {
		return tensor.decodeRows()
	}
	switch tensor.Datatype {
	case "FP32":
		values := make([]float32, len(tensor.Data)/4)
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(tensor.Data[4*i:]))
		}
		return values, nil
	case "BF16":
		values := make([]float32, len(tensor.Data)/2)
		for i := range values {
			values[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(tensor.Data[2*i:])) << 16)
		}
		return values, nil
	}
	return nil, fmt.Errorf("'%s' is %s: read its Data, or ask with OutputDatatype FP32", tensor.Name, tensor.Datatype)
}

func halfToFloat32(bits uint16) float32 {
	sign, exponent, fraction := float64(1), int(bits>>10&31), float64(bits&1023)/1024
	if bits>>15 == 1 {
		sign = -1
	}
	switch {
	case exponent == 0:
		return float32(sign * math.Ldexp(fraction, -14))
	case exponent < 31:
		return float32(sign * math.Ldexp(1+fraction, exponent-15))
	case fraction == 0:
		return float32(math.Inf(int(sign)))
	}
	return float32(math.NaN())
}

// codeOf is what the code of column i means without scale and bias.
func codeOf(format string, codes []byte, i int) float64 {
	switch {
	case strings.HasPrefix(format, "f8_e5m2"):
		return float64(halfToFloat32(uint16(codes[i]) << 8))
	case strings.HasPrefix(format, "f8_e4m3") && codes[i]&127 == 127:
		return math.NaN()
	case strings.HasPrefix(format, "f8_e4m3"):
		return float64(halfToFloat32(uint16(codes[i]&128)<<8|uint16(codes[i]&127)<<7)) * 256
	case strings.HasPrefix(format, "int8_symmetric"):
		return float64(int8(codes[i]))
	case strings.HasPrefix(format, "int4"):
		return float64(codes[i/2] >> (4 * (i % 2)) & 15)
	case strings.HasPrefix(format, "int2"):
		return float64(codes[i/4] >> (2 * (i % 4)) & 3)
	}
	return float64(codes[i])
}

func (tensor Tensor) decodeRows() ([]float32, error) {
	format, elements := tensor.RowFormat, tensor.RowElements
	paramBytes, numParams := 2, 2
	if format == "int8" || format == "int8_symmetric" || strings.HasPrefix(format, "f8_") {
		paramBytes = 4
	}
	if strings.HasPrefix(format, "int8_symmetric") || strings.HasSuffix(format, "_scaled") {
		numParams = 1
	} else if strings.HasPrefix(format, "f8_") {
		numParams = 0
	}
	perByte := 1
	if strings.HasPrefix(format, "int4") {
		perByte = 2
	} else if strings.HasPrefix(format, "int2") {
		perByte = 4
	}
	known := strings.HasPrefix(format, "int8") || strings.HasPrefix(format, "f8_e") || perByte > 1
	codeBytes := (elements + perByte - 1) / perByte
	rowBytes := codeBytes + numParams*paramBytes
	if !known || elements < 0 || len(tensor.Shape) == 0 || tensor.Shape[len(tensor.Shape)-1] != int64(rowBytes) ||
		(rowBytes > 0 && len(tensor.Data)%rowBytes != 0) {
		return nil, fmt.Errorf("'%s' has no rows of %d elements in the format '%s'", tensor.Name, elements, format)
	}
	values := []float32{}
	for at := 0; at < len(tensor.Data); at += rowBytes {
		codes, params := tensor.Data[at:at+codeBytes], tensor.Data[at+codeBytes:at+rowBytes]
		if strings.HasSuffix(format, "_front") {
			params, codes = tensor.Data[at:at+rowBytes-codeBytes], tensor.Data[at+rowBytes-codeBytes:at+rowBytes]
		}
		numbers := [2]float64{1, math.Copysign(0, -1)} // a bias that changes no number, not even the sign of zero
		for i := 0; i < numParams; i++ {
			if paramBytes == 4 {
				numbers[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(params[4*i:])))
			} else {
				numbers[i] = float64(halfToFloat32(binary.LittleEndian.Uint16(params[2*i:])))
			}
		}
		for i := 0; i < elements; i++ {
			values = append(values, float32(codeOf(format, codes, i)*numbers[0]+numbers[1]))
		}
	}
	return values, nil
}

// Rows are FP32, Count of Width each.
type Rows struct {
	Values       []float32
	Count, Width int
}

// Row is one of them, in the memory of all.
func (rows Rows) Row(i int) []float32 { return rows.Values[i*rows.Width : (i+1)*rows.Width] }

func rowsOf(tensor Tensor) (Rows, error) {
	values, err := tensor.Float32s()
	if err != nil || len(tensor.Shape) == 0 {
		return Rows{}, err
	}
	rows := Rows{values, int(tensor.Shape[0]), 1}
	for _, size := range tensor.Shape[1:] {
		rows.Width *= int(size)
	}
	if tensor.RowFormat != "" && tensor.Shape[len(tensor.Shape)-1] > 0 {
		rows.Width = rows.Width / int(tensor.Shape[len(tensor.Shape)-1]) * tensor.RowElements
	}
	return rows, nil
}

// ---- inference -----------------------------------------------------------------------------------------

// Query holds what may be said of a call that pools, beside its ids; nil and zero values say nothing.
type Query struct {
	Version                                        int64
	RequestID                                      string
	Weights                                        []float32 // one for each id
	DefaultIndex, PaddingIdx                       *int64
	IncludeLastOffset                              *bool
	Reduction, OutputDatatype, Missing, OutOfRange string
	OutputRowFormat                                string        // int8 and so on; rows are decoded
	Timeout                                        time.Duration // in the server's queue
	Explain                                        bool
	Outputs                                        []string // these alone
}

// Answer is all that a reply says.
type Answer struct {
	Outputs                 []Tensor
	ModelVersion, RequestID string
	Warnings                []string
	Explain                 json.RawMessage
}

// Bags of one feature: ids, and where each bag begins.
type Bags struct {
	Indices, Offsets []int64
	Weights          []float32
}

// BagsOf puts lists of ids behind each other.
func BagsOf(lists ...[]int64) Bags {
	bags := Bags{Indices: []int64{}, Offsets: make([]int64, 0, len(lists))}
	for _, list := range lists {
		bags.Offsets = append(bags.Offsets, int64(len(bags.Indices)))
		bags.Indices = append(bags.Indices, list...)
	}
	return bags
}

// Offsets gives one row for each offset, where a bag of indices begins.
func (client *Client) Offsets(ctx context.Context, model string, indices, offsets []int64, query *Query) (Rows, error) {
	return client.pool(ctx, model, query, Int64s("indices", indices), Int64s("offsets", offsets))
}

// Packed gives one row for each bag; all bags have equally many indices.
func (client *Client) Packed(ctx context.Context, model string, indices []int64, bags int, query *Query) (Rows, error) {
	if bags < 0 || (bags == 0 && len(indices) > 0) || (bags > 0 && len(indices)%bags != 0) {
		return Rows{}, fmt.Errorf("%d indices are not as many for each of %d bags", len(indices), bags)
	}
	width := 0
	if bags > 0 {
		width = len(indices) / bags
	}
	return client.pool(ctx, model, query, Int64s("indices", indices, int64(bags), int64(width)))
}

// Segments gives one row for each segment up to numSegments; segmentIDs say where each index belongs.
func (client *Client) Segments(ctx context.Context, model string, indices, segmentIDs []int64, numSegments int64,
	query *Query) (Rows, error) {
	return client.pool(ctx, model, query, Int64s("indices", indices), Int64s("segment_ids", segmentIDs),
		Int64s("num_segments", []int64{numSegments}))
}

func (client *Client) pool(ctx context.Context, model string, query *Query, inputs ...Tensor) (Rows, error) {
	if query != nil && query.Weights != nil {
		inputs = append(inputs, Float32s("per_sample_weights", query.Weights, inputs[0].Shape...))
	}
	if query != nil && query.DefaultIndex != nil {
		inputs = append(inputs, Int64s("default_index", []int64{*query.DefaultIndex}))
	}
	answer, err := client.Infer(ctx, model, inputs, query)
	if err != nil {
		return Rows{}, err
	}
	if len(answer.Outputs) != 1 {
		return Rows{}, &Error{Kind: ConnectionFailed, Text: fmt.Sprintf("%d outputs in place of one", len(answer.Outputs))}
	}
	return rowsOf(answer.Outputs[0])
}

// KJT returns the rows of all features of a collection by their names. The arguments have KeyedJaggedTensor's layout:
// values feature by feature in the configured order, and the number of values of each bag.
func (client *Client) KJT(ctx context.Context, model string, values, lengths []int64, query *Query) (map[string]Rows, error) {
	inputs := []Tensor{Int64s("values", values), Int64s("lengths", lengths)}
	if query != nil && query.Weights != nil {
		inputs = append(inputs, Float32s("weights", query.Weights))
	}
	return client.features(ctx, model, inputs, query)
}

// Collection gives the rows of some features of a collection, or of all.
func (client *Client) Collection(ctx context.Context, model string, features map[string]Bags, query *Query) (map[string]Rows, error) {
	names := make([]string, 0, len(features))
	for name := range features {
		names = append(names, name)
	}
	sort.Strings(names)
	var inputs []Tensor
	for _, name := range names {
		bags := features[name]
		inputs = append(inputs, Int64s(name+".indices", bags.Indices), Int64s(name+".offsets", bags.Offsets))
		if bags.Weights != nil {
			inputs = append(inputs, Float32s(name+".per_sample_weights", bags.Weights))
		}
	}
	return client.features(ctx, model, inputs, query)
}

func (client *Client) features(ctx context.Context, model string, inputs []Tensor, query *Query) (map[string]Rows, error) {
	answer, err := client.Infer(ctx, model, inputs, query)
	if err != nil {
		return nil, err
	}
	features := make(map[string]Rows, len(answer.Outputs))
	for _, output := range answer.Outputs {
		if features[output.Name], err = rowsOf(output); err != nil {
			return nil, err
		}
	}
	return features, nil
}

type described struct {
	Name       string          `json:"name"`
	Datatype   string          `json:"datatype,omitempty"`
	Shape      []int64         `json:"shape,omitempty"`
	Parameters *size           `json:"parameters,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
}

type size struct {
	Bytes       int    `json:"binary_data_size"`
	RowFormat   string `json:"row_format,omitempty"`
	RowElements int    `json:"row_elements,omitempty"`
}

// Infer asks with any tensors.
func (client *Client) Infer(ctx context.Context, model string, inputs []Tensor, query *Query) (*Answer, error) {
	parameters, path := map[string]any{"binary_data_output": true}, modelPath(model)
	var outputs []described
	id := ""
	if query != nil {
		if query.Version != 0 {
			path += "/versions/" + strconv.FormatInt(query.Version, 10)
		}
		for _, name := range query.Outputs {
			outputs = append(outputs, described{Name: name})
		}
		id = query.RequestID
		query.addTo(parameters)
	}
	got, err := client.send(ctx, path+"/infer", inputs, outputs, parameters, id)
	if err != nil {
		return nil, err
	}
	answer, err := decode(got)
	if err != nil {
		return nil, connectionError("the answer is not understood", err)
	}
	return answer, nil
}

func (query *Query) addTo(parameters map[string]any) {
	for name, text := range map[string]string{"reduction": query.Reduction, "output_datatype": query.OutputDatatype,
		"output_row_format": query.OutputRowFormat, "missing": query.Missing, "out_of_range": query.OutOfRange} {
		if text != "" {
			parameters[name] = text
		}
	}
	if query.PaddingIdx != nil {
		parameters["padding_idx"] = exact(*query.PaddingIdx)
	}
	if query.IncludeLastOffset != nil {
		parameters["include_last_offset"] = *query.IncludeLastOffset
	}
	if query.Timeout > 0 {
		parameters["timeout"] = query.Timeout.Microseconds()
	}
	if query.Explain {
		parameters["explain"] = true
	}
}

// exact is a key as JSON's numbers hold it, or as a text of digits.
func exact(key int64) any {
	if key > -firstInexact && key < firstInexact {
		return key
	}
	return strconv.FormatInt(key, 10)
}

func modelPath(model string) string { return "/v2/models/" + url.PathEscape(model) }

func (client *Client) send(ctx context.Context, path string, inputs []Tensor, outputs []described,
	parameters map[string]any, id string) (*reply, error) {
	asked := &request{method: http.MethodPost, path: path, isBinary: true}
	head := struct {
		ID         string         `json:"id,omitempty"`
		Inputs     []described    `json:"inputs"`
		Outputs    []described    `json:"outputs,omitempty"`
		Parameters map[string]any `json:"parameters"`
	}{id, make([]described, len(inputs)), outputs, parameters}
	for i, input := range inputs {
		if input.RowFormat != "" {
			return nil, fmt.Errorf("'%s' has rows in the format '%s', which an input has not: send its Float32s", input.Name,
				input.RowFormat)
		}
		head.Inputs[i] = described{input.Name, input.Datatype, input.Shape, &size{Bytes: len(input.Data)}, nil}
		asked.tensors = append(asked.tensors, input.Data)
	}
	var err error
	if asked.header, err = json.Marshal(head); err != nil {
		return nil, err
	}
	return client.do(ctx, asked)
}

func decode(got *reply) (*Answer, error) {
	var head struct {
		Outputs    []described
		ID         string
		Version    string `json:"model_version"`
		Parameters struct {
			Warnings []string
			Explain  json.RawMessage
		}
	}
	if err := json.Unmarshal(got.body[:got.headerSize], &head); err != nil {
		return nil, err
	}
	answer := &Answer{ModelVersion: head.Version, RequestID: head.ID, Warnings: head.Parameters.Warnings,
		Explain: head.Parameters.Explain}
	raw := got.body[got.headerSize:]
	for _, output := range head.Outputs {
		if output.Parameters == nil || output.Parameters.Bytes < 0 || output.Parameters.Bytes > len(raw) {
			return nil, fmt.Errorf("output '%s' has no binary data, or more than there is", output.Name)
		}
		data := raw[:output.Parameters.Bytes]
		raw = raw[len(data):]
		answer.Outputs = append(answer.Outputs, Tensor{output.Name, output.Datatype, output.Shape, data,
			output.Parameters.RowFormat, output.Parameters.RowElements})
	}
	return answer, nil
}

// ---- changing rows -------------------------------------------------------------------------------------

// Batch of an update: rows of Width numbers for indices, or for keys. Sequence is its number; 0: the server counts
// on. With FirstSequence it stands for all updates from that number on.
type Batch struct {
	Indices                 []int64
	Keys                    []uint64
	Rows                    []float32
	Width                   int
	FirstSequence, Sequence uint64
}

// Applied is the result of a change.
type Applied struct {
	Sequence uint64 // number of the last batch that the model has applied
	Applied  bool   // false: the model had it already
	Rows     int
}

// Update puts rows in the place of those of the indices, or under the keys; with a token of scope admin, or on the admin
// socket. Sent again with its number it changes nothing.
func (client *Client) Update(ctx context.Context, model string, batch Batch) (Applied, error) {
	if (batch.Indices == nil) == (batch.Keys == nil) {
		return Applied{}, errors.New("give indices, or keys of a table with keys")
	}
	ids := Int64s("indices", batch.Indices)
	if batch.Keys != nil {
		ids = keysOf(batch.Keys)
	}
	rows := Float32s("rows", batch.Rows, ids.Shape[0], int64(batch.Width))
	if int64(len(batch.Rows)) != ids.Shape[0]*int64(batch.Width) {
		return Applied{}, fmt.Errorf("%d numbers are not %d rows of %d", len(batch.Rows), ids.Shape[0], batch.Width)
	}
	return client.change(ctx, model, []Tensor{ids, rows}, batch, map[string]any{})
}

// Delete removes the batch's keys from a table with keys; otherwise as Update.
func (client *Client) Delete(ctx context.Context, model string, batch Batch) (Applied, error) {
	return client.change(ctx, model, []Tensor{keysOf(batch.Keys)}, batch, map[string]any{"delete": true})
}

func keysOf(keys []uint64) Tensor {
	signed := make([]int64, len(keys))
	for i, key := range keys {
		signed[i] = int64(key)
	}
	return Int64s("keys", signed)
}

func (client *Client) change(ctx context.Context, model string, inputs []Tensor, batch Batch,
	parameters map[string]any) (applied Applied, err error) {
	if batch.Sequence != 0 {
		parameters["sequence"] = batch.Sequence
	}
	if batch.FirstSequence != 0 {
		parameters["first_sequence"] = batch.FirstSequence
	}
	got, err := client.send(ctx, modelPath(model)+"/rows", inputs, nil, parameters, "")
	if err == nil {
		err = json.Unmarshal(got.body, &applied)
	}
	return applied, err
}

// ---- which models are served, on the admin listener ---------------------------------------------------

// Model is a name, and a version or "" for what the model's policy asks for.
type Model struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// State of a version.
type State struct{ Name, Version, State, Reason string }

// Load loads models in one step, all or none, and returns when they are served.
func (client *Client) Load(ctx context.Context, models ...Model) error {
	return client.control(ctx, "load", map[string]any{"models": models}, nil)
}

// Unload unloads a model, or one version of it; also the collections over it, if that is asked for.
func (client *Client) Unload(ctx context.Context, model Model, dependents bool) error {
	parameters := map[string]any{"unload_dependents": dependents}
	if model.Version != "" {
		parameters["version"] = model.Version
	}
	return client.control(ctx, "models/"+url.PathEscape(model.Name)+"/unload", map[string]any{"parameters": parameters}, nil)
}

// Index gives every version of every model.
func (client *Client) Index(ctx context.Context) (states []State, err error) {
	err = client.control(ctx, "index", map[string]any{}, &states)
	return states, err
}

func (client *Client) control(ctx context.Context, path string, body, result any) error {
	header, err := json.Marshal(body)
	if err != nil {
		return err
	}
	got, err := client.do(ctx, &request{method: http.MethodPost, path: "/v2/repository/" + path, header: header})
	if err == nil && result != nil {
		err = json.Unmarshal(got.body, result)
	}
	return err
}

// ---- asking around -------------------------------------------------------------------------------------

// IsReady returns whether the server accepts requests now, or the model if `model` is not "".
func (client *Client) IsReady(ctx context.Context, model string) (bool, error) {
	path := "/v2/health/ready"
	if model != "" {
		path = modelPath(model) + "/ready"
	}
	got, err := client.do(ctx, &request{method: http.MethodGet, path: path, isProbe: true})
	return err == nil && got.status == http.StatusOK, err
}

// Models gives the models' names.
func (client *Client) Models(ctx context.Context) ([]string, error) {
	var said struct{ Models []string }
	err := client.get(ctx, "/v2/models", &said)
	return said.Models, err
}

// Metadata of a model: its versions, inputs and outputs, and the properties of its table.
type Metadata struct {
	Name            string
	Versions        []string
	Inputs, Outputs []Tensor
	Parameters      struct {
		Rows           int64
		RowElements    int64  `json:"row_elements"`
		RowFormat      string `json:"row_format"`
		Keyed          bool
		UpdatesThrough uint64 `json:"updates_through"`
		Features       []struct{ Name, Model string }
	}
}

// Metadata asks for it.
func (client *Client) Metadata(ctx context.Context, model string) (*Metadata, error) {
	metadata := &Metadata{}
	return metadata, client.get(ctx, modelPath(model), metadata)
}

func (client *Client) get(ctx context.Context, path string, result any) error {
	got, err := client.do(ctx, &request{method: http.MethodGet, path: path})
	if err != nil {
		return err
	}
	return json.Unmarshal(got.body, result)
}
