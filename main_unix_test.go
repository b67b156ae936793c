//go:build unix

package rota

import "syscall"

// stop freezes the child, as a paused virtual machine would be, until cont.
func (c *child) stop() { c.signal(syscall.SIGSTOP) }

func (c *child) cont() { c.signal(syscall.SIGCONT) }

func (c *child) signal(sig syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Fatalf("%v to the child: %v", sig, err)
	}
}
