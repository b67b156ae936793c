package rota_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTheArchitectureHolds reads the package's source for what the design says
// about it.
func TestTheArchitectureHolds(t *testing.T) {
	pure := []string{"outcome.go", "backoff.go", "cron.go", "cronparse.go", "crondescribe.go"}
	mayGo := []string{"scheduler.go", "writer.go", "runner.go"}
	names, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, entry := range names {
		name := entry.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		seen++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if lines := fset.File(file.Pos()).LineCount(); lines > 900 {
			t.Errorf("%s has %d lines: it has more than one subject", name, lines)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				if !slices.Contains(mayGo, name) {
					t.Errorf("%s: a goroutine starts outside of %v", fset.Position(n.Pos()), mayGo)
				}
			case *ast.FuncDecl:
				if n.Body != nil {
					if lines := fset.Position(n.End()).Line - fset.Position(n.Pos()).Line; lines > 80 {
						t.Errorf("%s: %s has %d lines", fset.Position(n.Pos()), n.Name.Name, lines)
					}
				}
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: an init function", fset.Position(n.Pos()))
				}
				if n.Name.IsExported() && n.Doc == nil && exportedReceiver(n) && !isInterfaceMethod(n.Name.Name) {
					t.Errorf("%s: %s has no doc comment", fset.Position(n.Pos()), n.Name.Name)
				}
			case *ast.SelectorExpr:
				pkg, ok := n.X.(*ast.Ident)
				if !ok {
					break
				}
				call := pkg.Name + "." + n.Sel.Name
				if slices.Contains(pure, name) && (call == "time.Now" || call == "time.Since" || pkg.Name == "sql" || pkg.Name == "os" && n.Sel.Name != "ErrDeadlineExceeded") {
					t.Errorf("%s: %s in a file that is pure", fset.Position(n.Pos()), call)
				}
				if call == "time.Sleep" {
					t.Errorf("%s: time.Sleep can't be woken", fset.Position(n.Pos()))
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING && strings.Contains(n.Value, `"COMMIT"`) && name != "store_sqlite.go" {
					t.Errorf("%s: a commit outside of the store", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
	if seen < 15 {
		t.Errorf("only %d files were read", seen)
	}
}

// TestTimesAreComputedInOnePlace reads every file of the repository that is not
// a test: Spec alone may turn a spec, or a calendar, into a next time.
func TestTimesAreComputedInOnePlace(t *testing.T) {
	// robfig's parser is one of the two halves of ParseSpec, and its Next is used
	// nowhere; calendar arithmetic is what a second way would be made of.
	const robfig = "github.com/robfig/cron/v3"
	fromRobfig := []string{"Second", "Minute", "Hour", "Dom", "Month", "Dow", "NewParser", "SpecSchedule"}
	calendar := []string{"AddDate", "Weekday", "YearDay", "ISOWeek"}
	parsers := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		inCron, _ := filepath.Match("cron*.go", path)
		cron := ""
		for _, spec := range file.Imports {
			switch name := strings.Trim(spec.Path.Value, `"`); {
			case name == robfig && path == "cronparse.go":
				cron = "cron"
				parsers++
			case strings.Contains(name, "cron"):
				t.Errorf("%s: %s is imported; cronparse.go alone reads specs", path, name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			at, name := fset.Position(sel.Pos()), sel.Sel.Name
			pkg, _ := sel.X.(*ast.Ident)
			switch {
			case cron != "" && pkg != nil && pkg.Name == cron && !slices.Contains(fromRobfig, name):
				t.Errorf("%s: robfig's %s; only its parser is used", at, name)
			case cron != "" && name == "Next":
				t.Errorf("%s: a Next in the file that may only parse", at)
			case !inCron && (slices.Contains(calendar, name) || name == "Date" && pkg != nil && pkg.Name == "time"):
				t.Errorf("%s: %s: next times are computed by Spec alone", at, name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if parsers != 1 {
		t.Errorf("robfig's parser is imported %d times", parsers)
	}
}

func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if index, ok := typ.(*ast.IndexExpr); ok {
		typ = index.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

// isInterfaceMethod: its meaning is the interface's.
func isInterfaceMethod(name string) bool {
	return slices.Contains([]string{"Error", "Is", "Unwrap", "String"}, name)
}
