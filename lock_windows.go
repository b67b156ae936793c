//go:build windows

package rota

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

const (
	lockfileFailImmediately = 1
	lockfileExclusiveLock   = 2
	errorLockViolation      = syscall.Errno(33)
)

// flock takes the lock on f, or says that another handle has it. It ends with
// the handle, so also when the process is killed. Children of the program do
// not inherit it: Go opens handles that way.
func flock(f *os.File) (ok bool, err error) {
	lockFileEx := syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")
	var overlapped syscall.Overlapped
	r, _, err := lockFileEx.Call(f.Fd(), lockfileFailImmediately|lockfileExclusiveLock, 0, 1, 0,
		uintptr(unsafe.Pointer(&overlapped)))
	switch {
	case r != 0:
		return true, nil
	case errors.Is(err, errorLockViolation):
		return false, nil
	}
	return false, os.NewSyscallError("LockFileEx", err)
}

// funlock gives the lock back. Closing f would do so, too, but at a time of the
// system's choice.
func funlock(f *os.File) error {
	unlockFileEx := syscall.NewLazyDLL("kernel32.dll").NewProc("UnlockFileEx")
	var overlapped syscall.Overlapped
	r, _, err := unlockFileEx.Call(f.Fd(), 0, 1, 0, uintptr(unsafe.Pointer(&overlapped)))
	if r == 0 {
		return os.NewSyscallError("UnlockFileEx", err)
	}
	return nil
}

// syncPath makes a file's content durable. Windows keeps a folder's entries
// without being asked.
func syncPath(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
