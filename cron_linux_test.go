package rota_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A machine without zone data is a folder that holds a program, the libraries it
// was linked with, and nothing else.
func TestCaseB048AMachineWithoutZoneDataNeverMeansUTC(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may change a program's root folder")
	}
	for _, c := range []struct{ tags, want string }{
		{"", `the zone exists, but not on this machine: install tzdata, or import time/tzdata`},
		{"embedded", `^2026-01-01T06:00:00Z\n$`},
	} {
		root := t.TempDir()
		program := filepath.Join(root, "zones")
		if out, err := exec.Command("go", "build", "-tags", c.tags, "-o", program, "./testdata/zones").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out, _ := exec.Command("ldd", program).Output() // it fails for a program that needs none
		for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
			data, err := os.ReadFile(library)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(library)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, library), data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("/zones")
		cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", []string{"TZ="}, &syscall.SysProcAttr{Chroot: root}
		said, err := cmd.Output()
		if !regexp.MustCompile(c.want).Match(said) || strings.HasPrefix(c.want, "^") != (err == nil) {
			t.Errorf("tags %q: it said %q, %v; want %q", c.tags, said, err, c.want)
		}
	}
}
