package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"bagserve"
)

const token, readToken = "infer-0123456789abcdef", "read-0123456789abcdef"

func answer(status int, headers, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d x\r\n%sContent-Length: %d\r\n\r\n%s", status, headers, len(body), body)
}

var (
	models = answer(200, "", `{"models": ["m"]}`)
	busy   = answer(503, "Retry-After: 0\r\n", `{"error": "busy"}`)
	plain  = answer(503, "", `{"error": "loading"}`)
)

// server answers connections one after the other as told, closes each, and counts requests.
type server struct {
	address string
	count   int
	closed  chan struct{} // gets one for each connection, after its end
	done    chan struct{}
}

func script(t *testing.T, connections ...[]string) *server {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	told := &server{listener.Addr().String(), 0, make(chan struct{}, len(connections)), make(chan struct{})}
	go func() {
		defer close(told.done)
		for _, answers := range connections {
			peer, err := listener.Accept()
			if err != nil {
				return
			}
			told.answer(peer, answers)
			peer.Close()
			told.closed <- struct{}{}
		}
	}()
	return told
}

func (told *server) answer(peer net.Conn, answers []string) {
	reader := bufio.NewReader(peer)
	for _, text := range answers {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		io.Copy(io.Discard, request.Body)
		told.count++
		io.WriteString(peer, text)
	}
}

// expectRequests waits until all connections have ended.
func (told *server) expectRequests(t *testing.T, count int) {
	t.Helper()
	<-told.done
	if told.count != count {
		t.Fatalf("%d requests in place of %d", told.count, count)
	}
}

func open(t *testing.T, address string, options bagserve.Options) *bagserve.Client {
	client, err := bagserve.Open(address, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func expectModels(t *testing.T, client *bagserve.Client) {
	t.Helper()
	if names, err := client.Models(context.Background()); err != nil || len(names) != 1 || names[0] != "m" {
		t.Fatalf("%v, %v", names, err)
	}
}

func expectError(t *testing.T, err error, kind bagserve.Kind, words string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), words) {
		t.Fatalf("%v is not %v with '%s'", err, kind, words)
	}
}

// Two calls on one connection, and a new one where the server has closed it meanwhile.
func TestKeptConnections(t *testing.T) {
	told := script(t, []string{models, models}, []string{models})
	client := open(t, told.address, bagserve.Options{Retries: -1})
	expectModels(t, client)
	expectModels(t, client)
	<-told.closed
	expectModels(t, client)
	told.expectRequests(t, 3)
}

func TestBusy(t *testing.T) {
	told := script(t, []string{busy, busy, models})
	expectModels(t, open(t, told.address, bagserve.Options{}))
	told.expectRequests(t, 3)
	for _, answers := range [][]string{{busy, busy, busy}, {plain}} {
		told = script(t, answers)
		_, err := open(t, told.address, bagserve.Options{}).Models(context.Background())
		expectError(t, err, bagserve.Unavailable, map[int]string{3: "busy", 1: "loading"}[len(answers)])
		told.expectRequests(t, len(answers))
	}
	told = script(t, []string{answer(503, "Retry-After: 1000\r\n", "{}")})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := open(t, told.address, bagserve.Options{}).Models(ctx)
	expectError(t, err, bagserve.ConnectionFailed, "waiting")
}

// A request that was sent is not sent again: the server may be processing it.
func TestBrokenAnswers(t *testing.T) {
	for _, text := range []string{"", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
		answer(200, "Inference-Header-Content-Length: 9\r\n", "{}")} {
		told := script(t, []string{text})
		_, err := open(t, told.address, bagserve.Options{}).Models(context.Background())
		expectError(t, err, bagserve.ConnectionFailed, "")
		told.expectRequests(t, 1)
	}
}

func TestChunks(t *testing.T) {
	told := script(t, []string{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"7;x\r\n{\"model\r\n9\r\ns\":[\"m\"]}\r\n0\r\nA: b\r\n\r\n"})
	expectModels(t, open(t, told.address, bagserve.Options{}))
}

func TestDeadlines(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client := open(t, silent.Addr().String(), bagserve.Options{Timeout: 50 * time.Millisecond})
	_, err = client.Models(context.Background())
	expectError(t, err, bagserve.ConnectionFailed, "deadline")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	patient := open(t, silent.Addr().String(), bagserve.Options{Connections: 1})
	ctx, cancel := context.WithCancel(context.Background())
	var both sync.WaitGroup
	both.Add(2)
	for i := 0; i < 2; i++ { // one of them waits for a connection
		go func() {
			defer both.Done()
			if _, err := patient.Models(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
	}
	cancel()
	both.Wait()
}

func TestNobodyListens(t *testing.T) {
	for _, address := range []string{"127.0.0.1:1", "unix:///nowhere/bagserve.sock"} {
		_, err := open(t, address, bagserve.Options{Retries: 1}).Models(context.Background())
		expectError(t, err, bagserve.ConnectionFailed, "cannot connect")
	}
	for _, address := range []string{"ftp://x", "x/v2", "https://x/v2", "unix://", "unix:///", "", "http://"} {
		if _, err := bagserve.Open(address, bagserve.Options{}); err == nil {
			t.Error(address)
		}
	}
	if _, err := bagserve.Open("x", bagserve.Options{Token: "a\r\nX: b"}); err == nil {
		t.Error("a token of two lines")
	}
}

func TestTokensAndTLS(t *testing.T) {
	certificate, err := os.ReadFile(os.Getenv("BAGSERVE_CERTIFICATE"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	secure := &tls.Config{RootCAs: roots}
	ctx := context.Background()
	for _, address := range []string{os.Getenv("BAGSERVE_GUARDED"), os.Getenv("BAGSERVE_TLS")} {
		client := open(t, address, bagserve.Options{Token: token, TLS: secure})
		for i := 0; i < 3; i++ {
			rows, err := client.Packed(ctx, "items", []int64{1, 2}, 1, nil)
			if err != nil || rows.Count != 1 || rows.Width != 64 {
				t.Fatal(rows, err)
			}
		}
		if ready, err := client.IsReady(ctx, ""); err != nil || !ready {
			t.Fatal(ready, err)
		}
		_, err := open(t, address, bagserve.Options{Token: readToken, TLS: secure}).Packed(ctx, "items", []int64{1}, 1, nil)
		expectError(t, err, bagserve.Unauthorized, "scope infer")
		_, err = open(t, address, bagserve.Options{TLS: secure}).Packed(ctx, "items", []int64{1}, 1, nil)
		expectError(t, err, bagserve.Unauthorized, "token")
	}
	_, err = open(t, os.Getenv("BAGSERVE_TLS"), bagserve.Options{Retries: -1}).Models(ctx)
	expectError(t, err, bagserve.ConnectionFailed, "certificate")
}

// One client for all of them, on as many connections as it may have.
func TestManyGoroutines(t *testing.T) {
	client := open(t, os.Getenv("BAGSERVE_GUARDED"), bagserve.Options{Token: token, Connections: 3})
	var all sync.WaitGroup
	for i := 0; i < 12; i++ {
		all.Add(1)
		go func(bags int) {
			defer all.Done()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for n := 0; n < 20; n++ {
				rows, err := client.Packed(ctx, "items", make([]int64, bags), bags, nil)
				if err != nil || rows.Count != bags {
					t.Error(rows.Count, err)
				}
			}
		}(i + 1)
	}
	all.Wait()
}

func TestAfterClose(t *testing.T) {
	client := open(t, os.Getenv("BAGSERVE_GUARDED"), bagserve.Options{Token: token})
	client.Close()
	if _, err := client.Models(context.Background()); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Fatal(err)
	}
	client.Close()
}

// Mistakes that are found before anything is sent.
func TestArguments(t *testing.T) {
	client, ctx := open(t, "127.0.0.1:1", bagserve.Options{Retries: -1}), context.Background()
	if _, err := client.Packed(ctx, "m", []int64{1, 2, 3}, 2, nil); err == nil || !strings.Contains(err.Error(), "2 bags") {
		t.Error(err)
	}
	encoded := bagserve.Tensor{Name: "indices", Datatype: "UINT8", Shape: []int64{1, 4}, Data: make([]byte, 4), RowFormat: "int8"}
	if _, err := client.Infer(ctx, "m", []bagserve.Tensor{encoded}, nil); err == nil || !strings.Contains(err.Error(), "'int8'") {
		t.Error(err)
	}
	for _, batch := range []bagserve.Batch{{}, {Indices: []int64{1}, Keys: []uint64{1}},
		{Indices: []int64{1}, Rows: []float32{1, 2, 3}, Width: 2}} {
		if _, err := client.Update(ctx, "m", batch); err == nil || errors.Is(err, bagserve.ConnectionFailed) {
			t.Error(err)
		}
	}
}
