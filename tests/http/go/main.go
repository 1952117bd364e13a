// Asks a server for every case of proto/clients/cases.json, and prints what each came to as a line of JSON.
//
//	cases CASES ADDRESS ADMIN_ADDRESS
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"

	"bagserve"
)

type options struct {
	Reduction         string
	PaddingIdx        *int64 `json:"padding_idx"`
	DefaultIndex      *int64 `json:"default_index"`
	IncludeLastOffset *bool  `json:"include_last_offset"`
	Version           int64
	Outputs           []string
}

type asked struct {
	Name, Call, Model        string
	Indices, Weights, Rows   json.RawMessage
	Offsets, Values, Lengths []int64
	SegmentIDs               []int64 `json:"segment_ids"`
	NumSegments              int64   `json:"num_segments"`
	Keys                     []uint64
	Features                 map[string][][]int64
	Sequence                 uint64
	FirstSequence            uint64 `json:"first_sequence"`
	Options                  options
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// flat are the numbers of a list, or of a list of lists, and how many lists.
func flat[T any](text json.RawMessage) ([]T, int) {
	var lists [][]T
	var numbers []T
	if text == nil {
		return nil, 0
	}
	if json.Unmarshal(text, &numbers) == nil {
		return numbers, len(numbers)
	}
	must(json.Unmarshal(text, &lists))
	numbers = []T{}
	for _, list := range lists {
		numbers = append(numbers, list...)
	}
	return numbers, len(lists)
}

func table(rows bagserve.Rows) [][]float32 {
	lists := [][]float32{}
	for i := 0; i < rows.Count; i++ {
		lists = append(lists, rows.Row(i))
	}
	return lists
}

func ask(client, admin *bagserve.Client, one *asked) (any, error) {
	ctx := context.Background()
	query := &bagserve.Query{Version: one.Options.Version, PaddingIdx: one.Options.PaddingIdx,
		DefaultIndex: one.Options.DefaultIndex, IncludeLastOffset: one.Options.IncludeLastOffset,
		Reduction: one.Options.Reduction, Outputs: one.Options.Outputs}
	query.Weights, _ = flat[float32](one.Weights)
	indices, count := flat[int64](one.Indices)
	var rows bagserve.Rows
	var features map[string]bagserve.Rows
	var err error
	switch one.Call {
	case "offsets":
		rows, err = client.Offsets(ctx, one.Model, indices, one.Offsets, query)
	case "packed":
		rows, err = client.Packed(ctx, one.Model, indices, count, query)
	case "packed_on_admin":
		rows, err = admin.Packed(ctx, one.Model, indices, count, query)
	case "segments":
		rows, err = client.Segments(ctx, one.Model, indices, one.SegmentIDs, one.NumSegments, query)
	case "kjt":
		features, err = client.KJT(ctx, one.Model, one.Values, one.Lengths, query)
	case "collection":
		bags := map[string]bagserve.Bags{}
		for name, lists := range one.Features {
			bags[name] = bagserve.BagsOf(lists...)
		}
		features, err = client.Collection(ctx, one.Model, bags, query)
	default:
		return change(ctx, admin, one, indices)
	}
	if features == nil {
		features = map[string]bagserve.Rows{"embeddings": rows}
	}
	answer := map[string]any{}
	for name, of := range features {
		answer[name] = table(of)
	}
	return answer, err
}

func change(ctx context.Context, admin *bagserve.Client, one *asked, indices []int64) (any, error) {
	batch := bagserve.Batch{Indices: indices, Keys: one.Keys, Sequence: one.Sequence, FirstSequence: one.FirstSequence}
	var applied bagserve.Applied
	var err error
	if one.Call == "delete_keys" {
		applied, err = admin.Delete(ctx, one.Model, batch)
	} else {
		var count int
		batch.Rows, count = flat[float32](one.Rows)
		batch.Width = len(batch.Rows) / count
		applied, err = admin.Update(ctx, one.Model, batch)
	}
	return map[string]any{"sequence": applied.Sequence, "applied": applied.Applied}, err
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	must(err)
	var all struct{ Cases []asked }
	must(json.Unmarshal(text, &all))
	client, err := bagserve.Open(os.Args[2], bagserve.Options{})
	must(err)
	admin, err := bagserve.Open(os.Args[3], bagserve.Options{})
	must(err)
	output := json.NewEncoder(os.Stdout)
	for i := range all.Cases {
		answer, err := ask(client, admin, &all.Cases[i])
		var problem *bagserve.Error
		if errors.As(err, &problem) {
			must(output.Encode([]any{"error", problem.Kind, problem.Text, problem.Code}))
		} else {
			must(err)
			must(output.Encode([]any{"answer", answer}))
		}
	}
	client.Close()
	admin.Close()
}
