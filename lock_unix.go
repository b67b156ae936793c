//go:build unix

package rota

import (
	"errors"
	"os"
	"syscall"
)

// flock takes the lock on f, or says that another descriptor has it. It ends
// with the last descriptor of the open file, so also when the process is
// killed. Children of the program do not inherit it: Go opens close-on-exec.
func flock(f *os.File) (ok bool, err error) {
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		default:
			return false, os.NewSyscallError("flock", err)
		}
	}
}

// funlock gives the lock back. Closing f would do so, too, but not at once if the
// program is just starting a child, which has a copy of the descriptor until it
// begins.
func funlock(f *os.File) error {
	return os.NewSyscallError("flock", syscall.Flock(int(f.Fd()), syscall.LOCK_UN))
}

// syncPath makes a file's content, or a folder's entries, durable.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
