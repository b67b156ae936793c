//go:build unix

package rota

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func init() {
	// umask PATH BACKUP: makes every sort of file, with no umask to help.
	childRoles["umask"] = func(args []string) {
		syscall.Umask(0)
		s, err := Open(args[0], Config{})
		if err != nil {
			childFatal(err)
		}
		ctx := childContext()
		if _, err := s.RunDue(ctx); err != nil {
			childFatal(err)
		}
		if err := s.Backup(ctx, args[1]); err != nil {
			childFatal(err)
		}
		fmt.Println("made")
		<-ctx.Done()
	}
}

func TestEveryFileIsItsOwnersAloneWhateverTheUmask(t *testing.T) {
	dir := t.TempDir()
	c := startChild(t, "umask", filepath.Join(dir, "app.db"), filepath.Join(dir, "backup.db"))
	c.expect("made")
	files := folder(t, dir)
	want := []string{"app.db", "app.db-shm", "app.db-wal", "app.db.lock", "backup.db"}
	if got := names(files); !slices.Equal(got, want) {
		t.Errorf("the folder holds %q, want %q", got, want)
	}
	for _, f := range files {
		if want := os.FileMode(0o600).String(); f.mode != want {
			t.Errorf("%s: mode %s, want %s", f.name, f.mode, want)
		}
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
}

// A second name of the file must not give a second lock: two runners would
// take each other for dead in turns.
func TestALinkToTheFileSharesItsLock(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "app.db"), filepath.Join(dir, "link.db")
	if err := os.Symlink("app.db", link); err != nil {
		t.Fatal(err)
	}
	a := openAt(t, path, Config{})
	b := openAt(t, link, Config{})
	if ok, err := a.store.TryLock(); !ok || err != nil {
		t.Fatalf("lock: %v, %v", ok, err)
	}
	if ok, err := b.store.TryLock(); ok || err != nil {
		t.Errorf("the lock was given twice: %v, %v", ok, err)
	}
	if err := a.store.Unlock(); err != nil {
		t.Error(err)
	}
}
