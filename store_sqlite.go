package rota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Durability says what a commit survives. Both survive the death of the process.
type Durability string

const (
	// DurabilityFull, the default, survives a power cut as well.
	DurabilityFull Durability = "full"
	// DurabilityNormal may lose the last commits in a power cut, and leaves the
	// file whole. It suits work that is found again from state.
	DurabilityNormal Durability = "normal"
)

const (
	// busyWait is how long one statement waits for another process's write
	// lock. The writer then tries again, so it bounds no caller's patience;
	// it bounds how late the writer learns that a caller has left.
	busyWait = time.Second

	// poolWait is how long the pool's own transactions wait, unless their
	// context ends: longer than a large sweep takes, since the user of a pool
	// does not try again by himself.
	poolWait = 10 * time.Second

	// openWait bounds how long Open waits for others that open, migrate or
	// recover the same file.
	openWait = 30 * time.Second

	// maxStatements bounds the prepared statements that are kept; Rota has
	// fewer of its own.
	maxStatements = 128

	// memory is the path that asks for a database that ends with its Store.
	memory = ":memory:"
)

// sqliteStore is a Store on one SQLite file, in WAL mode: one connection
// writes, one watches for the commits of others, and a pool reads.
type sqliteStore struct {
	path  string // for messages
	db    *sql.DB
	write *sql.Conn
	watch *sql.Conn
	lock  fileLock

	// statements that the writing connection has prepared, by their text. Only
	// Update uses them, from one goroutine.
	statements map[string]*sql.Stmt
}

// openSQLite opens or creates the file and brings its schema up to date.
func openSQLite(ctx context.Context, path string, durability Durability) (*sqliteStore, error) {
	st := &sqliteStore{path: path, statements: make(map[string]*sql.Stmt)}
	if err := st.open(ctx, durability); err != nil {
		err = errors.Join(st.explain(err), st.Close())
		return nil, fmt.Errorf("rota: open %s: %w", path, err)
	}
	return st, nil
}

func (st *sqliteStore) open(ctx context.Context, durability Durability) error {
	where := "file:/" + uuid.NewString()
	query := url.Values{
		"_txlock": {"immediate"}, // a transaction that reads first must not fail when it writes
		"_pragma": {
			fmt.Sprintf("busy_timeout(%d)", poolWait.Milliseconds()),
			"synchronous(" + string(durability) + ")",
			"foreign_keys(1)",
			"trusted_schema(0)",
			"cell_size_check(1)",
			"journal_size_limit(4194304)", // bytes of WAL that a checkpoint leaves
		},
	}
	if st.path == memory {
		query.Set("vfs", "memdb") // shared by this process's connections, unlike :memory: itself
	} else {
		abs, err := filepath.Abs(st.path)
		if err != nil {
			return err
		}
		if err := createPrivate(abs); err != nil {
			return err
		}
		// As SQLite does: all names of the file share one lock.
		if abs, err = filepath.EvalSymlinks(abs); err != nil {
			return err
		}
		st.lock.path = abs + ".lock"
		where = fileURI(abs)
	}
	db, err := sql.Open("sqlite", where+"?"+query.Encode())
	if err != nil {
		return err
	}
	st.db = db
	// Idle connections are kept: each costs a file and its caches to open
	// again, and a memdb ends with its last one.
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)

	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	return retryBusy(ctx, func() error {
		if err := st.connect(ctx); err != nil {
			return err
		}
		return migrate(ctx, st)
	})
}

func (st *sqliteStore) connect(ctx context.Context) (err error) {
	if st.write == nil {
		if st.write, err = st.db.Conn(ctx); err != nil {
			return err
		}
		wait := fmt.Sprintf("PRAGMA busy_timeout(%d)", busyWait.Milliseconds())
		if _, err := st.write.ExecContext(ctx, wait); err != nil {
			return err
		}
	}
	if st.path != memory {
		// Before the first change of the file: one that is refused stays as it is.
		if _, _, err := missingMigrations(ctx, st.write); err != nil {
			return err
		}
		var mode string
		if err := st.write.QueryRowContext(ctx, "PRAGMA journal_mode(wal)").Scan(&mode); err != nil {
			return err
		}
		if mode != "wal" {
			return fmt.Errorf("journal mode is %q, not wal: is the file system one that SQLite's WAL works on?", mode)
		}
	}
	if st.watch == nil {
		st.watch, err = st.db.Conn(ctx)
	}
	return err
}

// createPrivate makes a new file readable by its owner only, before SQLite
// opens it; -wal and -shm take its mode from it. A file that exists is left
// alone, also by a descriptor: closing one would drop SQLite's own locks.
func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		info, err := os.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%w: it is no regular file", ErrNotDatabase)
		}
		return err
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// fileURI writes an absolute path so that SQLite reads the same path: blanks,
// '#', '?' and '%' have a meaning of their own in a URI.
func fileURI(abs string) string {
	slashed := filepath.ToSlash(abs)
	if !strings.HasPrefix(slashed, "/") { // C:/data/app.db
		slashed = "/" + slashed
	}
	return "file://" + (&url.URL{Path: slashed}).EscapedPath()
}

// retryBusy repeats what another process's lock kept from happening: converting
// a file to WAL, and recovering one after a crash, take locks that SQLite does
// not wait for.
func retryBusy(ctx context.Context, f func() error) error {
	wait := time.Millisecond
	for {
		err := f()
		if !isBusy(err) {
			return err
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, 50*time.Millisecond)
		case <-ctx.Done():
			return err
		}
	}
}

func isBusy(err error) bool {
	if errors.Is(err, ErrBusy) {
		return true
	}
	var e *sqlite.Error
	return errors.As(err, &e) && (e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code()&0xff == sqlite3.SQLITE_LOCKED)
}

// explain adds to SQLite's answer what the caller can do about it.
func (st *sqliteStore) explain(err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w (check the path, or restore the file from a backup): %w", ErrNotDatabase, err)
	case sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("the file is damaged (restore it from a backup): %w", err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("no space left for %s: %w", st.path, err)
	case sqlite3.SQLITE_READONLY:
		return fmt.Errorf("%s can't be written: %w", st.path, err)
	}
	return err
}

func (st *sqliteStore) DB() *sql.DB { return st.db }

func (st *sqliteStore) Update(ctx context.Context, f func(context.Context, Tx) error) (err error) {
	if err := st.exec("BEGIN IMMEDIATE"); err != nil {
		if isBusy(err) {
			return fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return st.explain(err)
	}
	committed := false
	defer func() { // also when f panics
		if committed {
			return
		}
		// SQLite may have rolled back by itself (a full disk); that is no
		// second failure.
		_ = st.exec("ROLLBACK")
		err = st.explain(err)
	}()
	if err := f(ctx, st); err != nil {
		return err
	}
	if err := st.exec("COMMIT"); isBusy(err) { // in memory, a reader can keep it from happening
		return fmt.Errorf("%w: %w", ErrBusy, err)
	} else if err != nil {
		return err
	}
	committed = true
	return nil
}

// exec runs a statement of the transaction itself. It takes no context: an
// interrupted BEGIN or COMMIT would leave it open whether there is one.
func (st *sqliteStore) exec(query string) error {
	stmt, err := st.prepare(query)
	if err != nil {
		return err
	}
	_, err = stmt.ExecContext(context.Background())
	return err
}

func (st *sqliteStore) prepare(query string) (*sql.Stmt, error) {
	if stmt := st.statements[query]; stmt != nil {
		return stmt, nil
	}
	if len(st.statements) >= maxStatements {
		// Sweeps bring texts of the caller's; there may be any number of them.
		for text, stmt := range st.statements {
			stmt.Close()
			delete(st.statements, text)
		}
	}
	stmt, err := st.write.PrepareContext(context.Background(), query)
	if err == nil {
		st.statements[query] = stmt
	}
	return stmt, err
}

// ExecContext, QueryContext and QueryRowContext make the store the Tx of its
// own Update.

func (st *sqliteStore) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	stmt, err := st.prepare(query)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, args...)
}

func (st *sqliteStore) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := st.prepare(query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

func (st *sqliteStore) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	stmt, err := st.prepare(query)
	if err != nil {
		return st.write.QueryRowContext(ctx, query, args...) // fails the same way, in Scan
	}
	return stmt.QueryRowContext(ctx, args...)
}

// Version is SQLite's data_version: it differs from the last answer if another
// connection has committed since, this store's own writing one included.
func (st *sqliteStore) Version(ctx context.Context) (version int64, err error) {
	err = st.watch.QueryRowContext(ctx, "PRAGMA data_version").Scan(&version)
	return version, st.explain(err)
}

func (st *sqliteStore) TryLock() (bool, error) { return st.lock.tryLock() }

func (st *sqliteStore) Unlock() error { return st.lock.unlock() }

// Backup copies by VACUUM INTO: it reads one state of the database and keeps no
// writer waiting. The name appears when the copy is whole and on disk.
func (st *sqliteStore) Backup(ctx context.Context, path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("rota: backup to %s: %w", path, fs.ErrExist)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".incomplete-*") // 0600
	if err != nil {
		return fmt.Errorf("rota: backup to %s: %w", path, err)
	}
	name := temp.Name()
	defer os.Remove(name) // fails after the rename, as it should
	err = errors.Join(temp.Close(), func() error {
		if _, err := st.db.ExecContext(ctx, "VACUUM INTO $1", name); err != nil {
			return st.explain(err)
		}
		if err := syncPath(name); err != nil {
			return err
		}
		// A link refuses a name that exists; a rename would replace it.
		if err := os.Link(name, path); err != nil {
			return err
		}
		return syncPath(filepath.Dir(path))
	}())
	if err != nil {
		return fmt.Errorf("rota: backup to %s: %w", path, err)
	}
	return nil
}

func (st *sqliteStore) Close() error {
	var errs []error
	for _, stmt := range st.statements {
		errs = append(errs, stmt.Close())
	}
	clear(st.statements)
	for _, c := range []*sql.Conn{st.write, st.watch} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	if st.db != nil {
		errs = append(errs, st.db.Close())
	}
	return errors.Join(append(errs, st.Unlock())...)
}
