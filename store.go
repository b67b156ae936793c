package rota

import (
	"context"
	"database/sql"
)

// Store is where the tables are: the seam between Rota and a database. Rota's
// statements are the same for every store (numbered parameters $1, $2, …,
// ON CONFLICT DO NOTHING, no functions that only one database has); a Store
// opens the database, brings its schema up to date, and knows how to run a
// transaction. Open makes the SQLite one.
type Store interface {
	// Update runs f in one transaction that excludes every other writer, and
	// commits it. If f or the commit fails, nothing has happened and no
	// transaction is left open. If another process keeps the write lock for
	// about a second, it fails with ErrBusy, and is called again. It is called
	// by one goroutine at a time.
	Update(ctx context.Context, f func(context.Context, Tx) error) error

	// DB is a pool on the same database for reads and for the application's
	// own transactions, which must begin as writing ones.
	DB() *sql.DB

	// Version is a number that changes when another process has committed. It
	// is asked many times a second, so it reads no table. It is called by one
	// goroutine at a time.
	Version(ctx context.Context) (int64, error)

	// TryLock takes the lock that one caller can have at a time, in all
	// processes, and that ends with its process, however that ends. It does
	// not wait.
	TryLock() (ok bool, err error)

	// Unlock gives back the lock that TryLock took.
	Unlock() error

	// Backup writes a consistent copy to a new file while others read and write.
	Backup(ctx context.Context, path string) error

	// Close ends all use of the database.
	Close() error
}

// Tx is what statements run on: a Store's transaction, or the caller's *sql.Tx.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
