// Package formats keeps the tables that unit tests of the controller check: what Go's own libraries, which the drivers
// use that Belay replaces, make of variables and files. `go test ./formats -write` writes their answers into the tables.
package formats

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

var write = flag.Bool("write", false, "write Go's answers into the tables")

const controller = "../../../controller/src"

// check gives a table to fill in its answers, and compares the result with the file, or writes it.
func check[Table any](t *testing.T, name string, fill func(*Table)) {
	t.Helper()
	path := filepath.Join(controller, name)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var stored, answered Table
	for _, table := range []*Table{&stored, &answered} {
		if err := json.Unmarshal(text, table); err != nil {
			t.Fatal(err)
		}
	}
	fill(&answered)
	if *write {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", " ")
		if err := encoder.Encode(answered); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !reflect.DeepEqual(stored, answered) {
		t.Errorf("%s differs from Go's answers; to see how: cd tests/wire && go test ./formats -write", name)
	}
}
