package rota

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// migrate brings the schema to this program's version. Processes that start at
// once queue at BEGIN IMMEDIATE, and each reads the version inside: one of them
// does the work, the others find it done.
func migrate(ctx context.Context, st *sqliteStore) error {
	// Most starts find nothing to do, and need no write lock to see it.
	if _, missing, err := missingMigrations(ctx, st.write); err != nil || len(missing) == 0 {
		return err
	}
	return st.Update(ctx, func(ctx context.Context, tx Tx) error {
		version, missing, err := missingMigrations(ctx, tx)
		if err != nil {
			return err
		}
		for _, name := range missing {
			text, err := fs.ReadFile(schemaFiles, name)
			if err != nil {
				return err
			}
			if _, err := st.write.ExecContext(ctx, string(text)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO rota_meta (key, value) VALUES ('schema', $1)
			ON CONFLICT (key) DO UPDATE SET value = excluded.value`, strconv.Itoa(version+len(missing)))
		return err
	})
}

// missingMigrations lists what brings the database from its version to this
// program's. It refuses one that a newer program has written.
func missingMigrations(ctx context.Context, tx Tx) (version int, missing []string, err error) {
	files, err := fs.Glob(schemaFiles, "schema/*.sql") // sorted: 001, 002, …
	if err != nil {
		return 0, nil, err
	}
	if version, err = schemaVersion(ctx, tx); err != nil {
		return 0, nil, err
	}
	if version > len(files) {
		return 0, nil, fmt.Errorf("schema version %d, this program knows %d: %w", version, len(files), ErrNewerSchema)
	}
	return version, files[version:], nil
}

// schemaVersion is 0 for a database without Rota's tables.
func schemaVersion(ctx context.Context, tx Tx) (int, error) {
	var tables int
	err := tx.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'rota_meta'`).Scan(&tables)
	if err != nil || tables == 0 {
		return 0, err
	}
	var text string
	err = tx.QueryRowContext(ctx, `SELECT value FROM rota_meta WHERE key = 'schema'`).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("rota_meta holds no schema version: the table is not Rota's, or was edited: %w", ErrNotDatabase)
	}
	if err != nil {
		return 0, err
	}
	version, err := strconv.Atoi(text)
	if err != nil || version < 1 {
		return 0, fmt.Errorf("schema version %q is none of Rota's: %w", text, ErrNotDatabase)
	}
	return version, nil
}
