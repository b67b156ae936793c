package rota

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func init() {
	// open FOLDER: for each word, opens the file of that name there, says so,
	// enqueues a job and closes it.
	childRoles["open"] = func(args []string) {
		fmt.Println("ready")
		for name := range childInput {
			s, err := Open(filepath.Join(args[0], name), Config{})
			if err != nil {
				childFatal(err)
			}
			if _, err := Kind[int]("open.child").Enqueue(context.Background(), s, 1, EnqueueOptions{}); err != nil {
				childFatal(err)
			}
			if err := s.Close(); err != nil {
				childFatal(err)
			}
			fmt.Println("ready")
		}
	}
}

func TestTenProcessesThatOpenANewFileAtOnceAllSucceedAndMigrateOnce(t *testing.T) {
	dir := t.TempDir()
	var children []*child
	for range 10 {
		children = append(children, startChild(t, "open", dir))
	}
	const rounds = 2
	for round := range rounds {
		for _, c := range children {
			c.expect("ready")
		}
		for _, c := range children {
			c.say(fmt.Sprint(round, ".db"))
		}
	}
	for i, c := range children {
		c.expect("ready")
		if err := c.end(); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
	// SQLite counts the changes of a schema, so this tells one migration from two.
	const changes = "PRAGMA schema_version"
	alone := readOne[int](t, open(t, Config{}).DB(), changes)
	for round := range rounds {
		together := openAt(t, filepath.Join(dir, fmt.Sprint(round, ".db")), Config{}).DB()
		if n := readOne[int](t, together, changes); n != alone {
			t.Errorf("ten processes made %d changes of the schema, one makes %d", n, alone)
		}
		if n := readOne[int](t, together, "SELECT count(*) FROM rota_jobs"); n != 10 {
			t.Errorf("%d jobs; the ten processes enqueued one each", n)
		}
	}
}

func TestOpenOutlastsALockThatAnotherProgramHoldsForLong(t *testing.T) {
	for name, prepare := range map[string]string{
		"a new file":             "PRAGMA journal_mode = delete",
		"the application's file": "CREATE TABLE invoices (id INTEGER PRIMARY KEY)",
		"one that is in WAL":     "PRAGMA journal_mode = wal; CREATE TABLE invoices (id INTEGER PRIMARY KEY)",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "app.db")
				withDatabase(t, path, prepare)
				release := holdLock(t, path)
				opened := make(chan error, 1)
				go func() {
					s, err := Open(path, Config{})
					if err == nil {
						err = s.Close()
					}
					opened <- err
				}()
				time.Sleep(openWait / 2)
				release()
				if err := <-opened; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestOpenRefusesWhatIsNoDatabaseOfItsOwnAndLeavesItUntouched(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, path string)
		want error  // matched
		says string // part of the message
	}{
		{"a text", func(t *testing.T, path string) {
			writeFile(t, path, []byte(strings.Repeat("this is no database\n", 500)))
		}, ErrNotDatabase, "check the path"},
		{"a short text", func(t *testing.T, path string) { writeFile(t, path, []byte("hi")) }, ErrNotDatabase, "check the path"},
		{"zeros", func(t *testing.T, path string) { writeFile(t, path, make([]byte, 8192)) }, ErrNotDatabase, "check the path"},
		{"a database whose header is garbage", func(t *testing.T, path string) {
			makeDatabase(t, path)
			data := readFile(t, path)
			copy(data, "SQLite formal 3\x00")
			writeFile(t, path, data)
		}, ErrNotDatabase, "check the path"},
		{"a newer schema", func(t *testing.T, path string) { makeNewer(t, path) }, ErrNewerSchema, "schema version 999"},
		{"a newer schema in a copy without WAL", func(t *testing.T, path string) {
			makeNewer(t, path)
			withDatabase(t, path, "PRAGMA journal_mode = delete")
		}, ErrNewerSchema, "schema version 999"},
		{"a table of that name that is not Rota's", func(t *testing.T, path string) {
			withDatabase(t, path, "CREATE TABLE rota_meta (key TEXT, value TEXT)")
		}, ErrNotDatabase, "rota_meta"},
		{"a schema version that is no number", func(t *testing.T, path string) {
			makeDatabase(t, path)
			withDatabase(t, path, "UPDATE rota_meta SET value = 'one' WHERE key = 'schema'")
		}, ErrNotDatabase, `"one"`},
		{"a schema version below zero", func(t *testing.T, path string) {
			makeDatabase(t, path)
			withDatabase(t, path, "UPDATE rota_meta SET value = '-1' WHERE key = 'schema'")
		}, ErrNotDatabase, `"-1"`},
		{"a folder", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, ErrNotDatabase, "no regular file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "app.db")
			c.make(t, path)
			refuses(t, path, c.want, c.says)
		})
	}
}

func TestOpenRefusesATruncatedFileAndLeavesItUntouched(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole.db")
	makeDatabase(t, whole)
	data := readFile(t, whole)
	for _, n := range []int{2, 15, 16, 17, 99, 100, 101, 511, 512, 4095, 4096, 4097, len(data) / 2, len(data) - 4096} {
		t.Run(fmt.Sprintf("to %d of %d bytes", n, len(data)), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "app.db")
			writeFile(t, path, data[:n])
			refuses(t, path, nil, "restore")
		})
	}
}

// refuses demands that Open fails, with an error that matches want (if that is
// one) and says what is to be read there, and changes nothing in the folder.
func refuses(t *testing.T, path string, want error, says string) {
	t.Helper()
	before := folder(t, filepath.Dir(path))
	s, err := Open(path, Config{})
	if err == nil {
		s.Close()
		t.Fatal("it was opened")
	}
	if want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
		t.Errorf("error: %v\nwant one that matches %v and says %q and the path", err, want, says)
	}
	if after := folder(t, filepath.Dir(path)); !slices.Equal(before, after) {
		t.Errorf("the folder was changed\nfrom %q\n  to %q", names(before), names(after))
	}
}

func TestOpenInAFolderThatDoesNotExistSaysSo(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "missing", "app.db"), Config{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error: %v; it must match fs.ErrNotExist", err)
	}
}

func TestOpenWithAWrongConfigCreatesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	if _, err := Open(path, Config{MaxRunning: -1, Durability: "perhaps"}); !errors.Is(err, ErrConfig) ||
		!strings.Contains(err.Error(), "max_running") || !strings.Contains(err.Error(), "durability") {
		t.Errorf("error: %v; it must match ErrConfig and name both fields", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
}

func TestAnEmptyFileOpensAsANewDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	writeFile(t, path, nil)
	s := openAt(t, path, Config{})
	if _, err := Kind[int]("any").Enqueue(t.Context(), s, 1, EnqueueOptions{}); err != nil {
		t.Error(err)
	}
}

func TestOpenKeepsTheApplicationsOwnTables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	withDatabase(t, path, "CREATE TABLE invoices (id INTEGER PRIMARY KEY); INSERT INTO invoices VALUES (7)")
	s := openAt(t, path, Config{})
	if id := readOne[int](t, s.DB(), "SELECT id FROM invoices"); id != 7 {
		t.Errorf("invoice %d", id)
	}
}

func TestAPathIsTakenAsItIsWritten(t *testing.T) {
	for _, name := range []string{
		"with space.db", "hash#tag.db", "question?mode=memory.db", "percent%41.db", "100%", "plus+and&amp;=.db",
		"ünïcode-日本語.db", "emoji-🗄.db", "quote'\"`.db", "semi;colon,.db", "back\\slash.db", "line\nbreak.db",
		"file:app.db", "-wal", "no-extension",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, name)
			enqueueAt(t, path)
			if got := names(folder(t, dir)); !slices.Equal(got, []string{name}) {
				t.Errorf("the folder holds %q", got)
			}
			s := openAt(t, path, Config{})
			if n := readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs"); n != 1 {
				t.Errorf("%d jobs after opening it again", n)
			}
		})
	}
}

func TestARelativePathIsMeantFromWhereTheProgramStandsAtOpen(t *testing.T) {
	here, elsewhere := t.TempDir(), t.TempDir()
	t.Chdir(here)
	s := openAt(t, "app.db", Config{})
	t.Chdir(elsewhere)
	// New connections and the lock file must not follow.
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	var conns []*sql.Conn
	for range 4 {
		conn, err := s.DB().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		if n := readOne[int](t, conn, "SELECT count(*) FROM rota_meta"); n == 0 {
			t.Error("a connection reads another file")
		}
		conn.Close()
	}
	if _, err := os.Stat(filepath.Join(here, "app.db.lock")); err != nil {
		t.Error(err)
	}
	if left := names(folder(t, elsewhere)); len(left) > 0 {
		t.Errorf("it left %q in another folder", left)
	}
}

func TestAMemoryDatabaseTakesParallelEnqueuesWhileJobsRun(t *testing.T) {
	s := openAt(t, memory, Config{})
	other := openAt(t, memory, Config{})
	const kind Kind[int] = "memory"
	var ran atomic.Int64
	Handle(s, kind, func(ctx context.Context, job *Job, n int) error {
		ran.Add(1)
		return nil
	}, Policy{})
	start(t, s)
	const callers, each = 50, 3
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range each {
				if _, err := kind.Enqueue(t.Context(), s, i, EnqueueOptions{}); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.Stats(t.Context()); err != nil {
				t.Errorf("a reader beside them: %v", err)
			}
		})
	}
	wg.Wait()
	waitFor(t, "all jobs have succeeded", func() bool {
		return readOne[int](t, s.DB(), "SELECT count(*) FROM rota_jobs WHERE state = 'succeeded'") == callers*each
	})
	if n := ran.Load(); n != callers*each {
		t.Errorf("the handler ran %d times for %d jobs", n, callers*each)
	}
	if n := readOne[int](t, other.DB(), "SELECT count(*) FROM rota_jobs"); n != 0 {
		t.Errorf("another memory database holds %d of the jobs", n)
	}
	if _, err := os.Stat(memory); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a file named %s", memory)
	}
}

func TestEveryConnectionHasItsSettings(t *testing.T) {
	for durability, synchronous := range map[Durability]int{DurabilityFull: 2, DurabilityNormal: 1} {
		s := open(t, Config{Durability: durability})
		st := s.store.(*sqliteStore)
		conns := []*sql.Conn{st.write, st.watch}
		for stats := s.DB().Stats(); stats.InUse < stats.MaxOpenConnections; stats = s.DB().Stats() {
			conn, err := s.DB().Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conns = append(conns, conn)
		}
		if len(conns) < 4 {
			t.Fatalf("only %d connections", len(conns))
		}
		for i, conn := range conns {
			if mode := readOne[string](t, conn, "PRAGMA journal_mode"); mode != "wal" {
				t.Errorf("connection %d: journal_mode %s", i, mode)
			}
			if n := readOne[int](t, conn, "PRAGMA synchronous"); n != synchronous {
				t.Errorf("connection %d, %s: synchronous %d, want %d", i, durability, n, synchronous)
			}
			if n := readOne[int](t, conn, "PRAGMA foreign_keys"); n != 1 {
				t.Errorf("connection %d: foreign_keys %d", i, n)
			}
			if n := readOne[int](t, conn, "PRAGMA busy_timeout"); n < 1000 {
				t.Errorf("connection %d: busy_timeout %d ms", i, n)
			}
		}
	}
}

// A sweep of many rows, or a migration of the application's own, takes seconds.
func TestTheApplicationsTransactionsWaitForALongWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Config{})
		release := holdWriteLock(t, s)
		begun := make(chan error, 1)
		go func() {
			tx, err := s.DB().BeginTx(t.Context(), nil)
			if err == nil {
				err = tx.Rollback()
			}
			begun <- err
		}()
		hurried, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := s.DB().BeginTx(hurried, nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 50*time.Millisecond {
			t.Errorf("a transaction with a deadline of 50 ms: %v after %v", err, time.Since(began))
		}
		time.Sleep(8 * time.Second)
		release()
		if err := <-begun; err != nil {
			t.Errorf("a transaction of the pool failed beside a write of 8 s: %v", err)
		}
	})
}

func TestTheDriverAndItsSQLiteAreRecentEnough(t *testing.T) {
	s := open(t, Config{})
	if v := readOne[string](t, s.DB(), "SELECT sqlite_version()"); !atLeast(v, "3.51.3") {
		t.Errorf("SQLite %s; the WAL-reset bug is mended in 3.51.3", v)
	}
	required := requirements(t)
	if v := required["modernc.org/sqlite"]; !atLeast(strings.TrimPrefix(v, "v"), "1.62.0") {
		t.Errorf("go.mod requires modernc.org/sqlite %q; want v1.62.0 or newer", v)
	}
}

// mayDependOn are the modules that the package may use, beside the standard
// library.
var mayDependOn = []string{
	"modernc.org/sqlite", "github.com/robfig/cron/v3", "github.com/google/uuid", "github.com/BurntSushi/toml",
}

func TestThePackageImportsFourModulesAndTheStandardLibrary(t *testing.T) {
	for _, system := range []string{"linux", "darwin", "windows"} {
		list := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, ".")
		list.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		out, err := list.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		imports := strings.Fields(string(out))
		if !slices.Contains(imports, "database/sql") {
			t.Fatalf("imports of the package: %q", imports)
		}
		for _, path := range imports {
			if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
				continue // the standard library's
			}
			if !slices.ContainsFunc(mayDependOn, func(m string) bool { return path == m || strings.HasPrefix(path, m+"/") }) {
				t.Errorf("%s: the package imports %s", system, path)
			}
		}
	}
	for module := range requirements(t) {
		if !slices.Contains(mayDependOn, module) {
			t.Errorf("go.mod requires %s directly", module)
		}
	}
}

// requirements are the versions of the modules that go.mod requires directly.
func requirements(t *testing.T) map[string]string {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-json", "go.mod").Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct {
			Path, Version string
			Indirect      bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	direct := make(map[string]string)
	for _, r := range mod.Require {
		if !r.Indirect {
			direct[r.Path] = r.Version
		}
	}
	return direct
}

// atLeast compares versions of three numbers.
func atLeast(version, least string) bool {
	parse := func(s string) (v [3]int) {
		for i, part := range strings.SplitN(s, ".", 3) {
			v[i], _ = strconv.Atoi(part) // what is no number is 0, the oldest
		}
		return v
	}
	a, b := parse(version), parse(least)
	return slices.Compare(a[:], b[:]) >= 0
}

// readOne reads the one value of a query.
func readOne[T any](t testing.TB, tx Tx, query string, args ...any) (value T) {
	t.Helper()
	if err := tx.QueryRowContext(context.Background(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// withDatabase runs a statement on the file, by SQLite alone.
func withDatabase(t testing.TB, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", fileURI(path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// makeDatabase makes a database of this version with some jobs in it.
func makeDatabase(t *testing.T, path string) {
	t.Helper()
	s, err := Open(path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	entries := make([]Entry[string], 100)
	for i := range entries {
		entries[i].Args = strings.Repeat("x", 300)
	}
	if _, err := Kind[string]("any").EnqueueMany(t.Context(), s, entries...); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func makeNewer(t *testing.T, path string) {
	t.Helper()
	makeDatabase(t, path)
	withDatabase(t, path, "UPDATE rota_meta SET value = '999' WHERE key = 'schema'")
}

// enqueueAt opens the file, enqueues one job and closes it.
func enqueueAt(t *testing.T, path string) {
	t.Helper()
	s, err := Open(path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Kind[int]("any").Enqueue(t.Context(), s, 1, EnqueueOptions{}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// fileState is what is to be seen of a file from outside.
type fileState struct {
	name, mode, content string
}

// folder is the state of every file in the folder, by name.
func folder(t *testing.T, dir string) []fileState {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var states []fileState
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		state := fileState{name: e.Name(), mode: info.Mode().String()}
		if info.Mode().IsRegular() {
			state.content = string(readFile(t, filepath.Join(dir, e.Name())))
		}
		states = append(states, state)
	}
	return states
}

func names(states []fileState) []string {
	var all []string
	for _, s := range states {
		all = append(all, s.name)
	}
	return all
}
