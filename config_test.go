package rota

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
)

var fullConfig = Config{
	Name: "mail-1", MaxRunning: 32, MaxHung: 8, MaxArgs: 65536,
	LeaseTTL: 15 * time.Second, Grace: 30 * time.Second, Unwind: 5 * time.Second, PollInterval: 20 * time.Millisecond,
	Durability: DurabilityNormal,
	Kinds: map[string]Policy{
		"invoice.send": {
			Timeout: 90 * time.Second, MaxRunning: 4, Rate: Rate{Count: 10, Per: time.Second}, OnUnknown: UnknownHold, MaxDeaths: 2,
			Retry: Retry{Base: 10 * time.Second, Factor: 2, Cap: time.Hour, Jitter: Plus(9 * time.Second), MaxAttempts: 8, MaxElapsed: 24 * time.Hour},
		},
		"export": {Timeout: -1, Retry: Retry{Base: time.Second, Factor: 1.5, Cap: time.Minute, Jitter: Fraction(0.2), MaxAttempts: 5}},
		"ping":   {Rate: Rate{Count: 600, Per: time.Minute}, OnUnknown: UnknownProbe, Retry: Retry{Jitter: NoJitter(), MaxAttempts: 1}},
	},
}

func TestAConfigFileHoldsEveryField(t *testing.T) {
	cfg, err := LoadConfig("testdata/config/full.toml")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(cfg, fullConfig) {
		t.Errorf("loaded\n%+v, want\n%+v", cfg, fullConfig)
	}
	// A field that is added later must get a key, or be named here.
	for _, of := range []struct {
		value  any
		keys   map[string]setter
		inCode []string
	}{
		{Config{}, configKeys(new(Config)), []string{"redact", "logger"}},
		{Policy{}, policyKeys(new(Policy)), []string{"probe"}},
		{Retry{}, retryKeys(new(Retry)), nil},
	} {
		want := slices.Collect(maps.Keys(of.keys))
		want = append(want, of.inCode...)
		var fields []string
		for field := range reflect.TypeOf(of.value).Fields() {
			fields = append(fields, snake(field.Name))
		}
		slices.Sort(want)
		slices.Sort(fields)
		if !slices.Equal(fields, want) {
			t.Errorf("%T has the fields %q, the file the keys %q", of.value, fields, want)
		}
	}
}

// snake writes LeaseTTL as lease_ttl.
func snake(name string) string {
	return strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "${1}_${2}"))
}

func TestAConfigThatIsWrittenAndLoadedIsTheSame(t *testing.T) {
	for _, cfg := range []Config{{}, fullConfig} {
		path := filepath.Join(t.TempDir(), "app.toml")
		writeConfig(t, path, configText(cfg))
		again, err := LoadConfig(path)
		if err != nil {
			t.Fatalf("%v\n%s", err, configText(cfg))
		}
		if !reflect.DeepEqual(again, cfg) {
			t.Errorf("wrote %+v, loaded %+v", cfg, again)
		}
	}
}

// configText writes a Config as TOML: what is not zero, by keys only, so that
// nothing of LoadConfig's own knowledge is used.
func configText(cfg Config) string {
	var b strings.Builder
	duration := func(key string, d time.Duration) {
		if d != 0 {
			fmt.Fprintf(&b, "%s = %q\n", key, d)
		}
	}
	count := func(key string, n int) {
		if n != 0 {
			fmt.Fprintf(&b, "%s = %d\n", key, n)
		}
	}
	text := func(key, s string) {
		if s != "" {
			fmt.Fprintf(&b, "%s = %s\n", key, tomlText(s))
		}
	}
	text("name", cfg.Name)
	count("max_running", cfg.MaxRunning)
	count("max_hung", cfg.MaxHung)
	count("max_args", cfg.MaxArgs)
	duration("lease_ttl", cfg.LeaseTTL)
	duration("grace", cfg.Grace)
	duration("unwind", cfg.Unwind)
	duration("poll_interval", cfg.PollInterval)
	text("durability", string(cfg.Durability))
	if cfg.Kinds != nil {
		b.WriteString("[kinds]\n")
	}
	for kind, p := range cfg.Kinds {
		fmt.Fprintf(&b, "[kinds.%s]\n", tomlText(kind))
		duration("timeout", p.Timeout)
		count("max_running", p.MaxRunning)
		count("rate.count", p.Rate.Count)
		duration("rate.per", p.Rate.Per)
		text("on_unknown", string(p.OnUnknown))
		count("max_deaths", p.MaxDeaths)
		r := p.Retry
		duration("retry.base", r.Base)
		if r.Factor != 0 {
			fmt.Fprintf(&b, "retry.factor = %s\n", tomlFloat(r.Factor))
		}
		duration("retry.cap", r.Cap)
		text("retry.jitter", r.Jitter.String())
		count("retry.max_attempts", r.MaxAttempts)
		duration("retry.max_elapsed", r.MaxElapsed)
	}
	return b.String()
}

func tomlText(s string) string {
	var b bytes.Buffer
	b.WriteByte('"')
	for _, r := range s {
		fmt.Fprintf(&b, `\U%08x`, r)
	}
	b.WriteByte('"')
	return b.String()
}

func tomlFloat(f float64) string {
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

func writeConfig(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAllFaultsOfAConfigFileAreReportedAtOnce reads files whose comments say
// which fault their line has, and in which column.
func TestAllFaultsOfAConfigFileAreReportedAtOnce(t *testing.T) {
	for name, least := range map[string]int{"bad-keys": 15, "bad-types": 19, "bad-values": 22} {
		path := "testdata/config/" + name + ".toml"
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i, line := range strings.Split(string(text), "\n") {
			for _, comment := range strings.Split(line, "# ERROR ")[1:] {
				column, message, _ := strings.Cut(strings.TrimSpace(comment), " ")
				want = append(want, fmt.Sprintf("%s:%d:%s: %s", path, i+1, column, message))
			}
		}
		if len(want) < least {
			t.Errorf("%s: only %d faults are marked", path, len(want))
		}
		cfg, err := LoadConfig(path)
		if !reflect.DeepEqual(cfg, Config{}) {
			t.Errorf("%s: beside its faults came %+v", path, cfg)
		}
		for i, e := range faultsOf(t, err) {
			if i >= len(want) || e.Error() != want[i] {
				t.Errorf("fault\n%s, want\n%s", e, slices.Concat(want, make([]string, i+1))[i])
			}
			if !errors.Is(e, ErrConfig) || e.File != path {
				t.Errorf("%#v does not match ErrConfig, or is of another file", e)
			}
		}
		if got := len(faultsOf(t, err)); got != len(want) {
			t.Errorf("%s: %d faults, want %d", path, got, len(want))
		}
	}
}

// faultsOf takes the error of LoadConfig apart, as a user would.
func faultsOf(t testing.TB, err error) (found []*ConfigError) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v is no list of errors", err)
	}
	for _, err := range joined.Unwrap() {
		var e *ConfigError
		if !errors.As(err, &e) {
			t.Fatalf("%v is no ConfigError", err)
		}
		found = append(found, e)
	}
	return found
}

func TestTextThatIsNoTOMLIsAFaultWithItsPlace(t *testing.T) {
	const quotes = `; words and durations stand in quotes, such as "hold" or "90s"`
	t.Chdir(t.TempDir())
	for _, c := range []struct{ text, want string }{
		// Words without quotes.
		{"grace = 10s\n", "1:11: grace is no TOML: expected a top-level item to end with a newline, comment, or EOF, but got 's' instead" + quotes},
		{"[kinds.a]\non_unknown = hold", `2:14: kinds.a.on_unknown is no TOML: expected value but found "hold" instead` + quotes},
		{"[kinds.a]\nretry = { base = 1s }", "2:19: kinds.a.retry.base is no TOML: expected a comma or an inline table terminator '}', but got 's' instead" + quotes},
		// Keys and tables that come twice.
		{"name = 'a'\ngrace = '1s'\nname = 'b'", "3:1: name is set twice, first in line 1"},
		{"name = 'a'\n\"name\" = 'b'", "2:1: name is set twice, first in line 1"},
		{"[kinds.\"a.b\"]\nrate = { count = 1, count = 2 }", `2:21: kinds."a.b".rate.count is set twice, first in line 2`},
		{"[kinds.a]\nretry.base = '1s'\nretry = { cap = '1h' }", "3:1: kinds.a.retry is set twice, first in line 2"},
		{"[kinds.a]\nretry.base = '1s'\nretry = 2\nrate = 1", "3:1: kinds.a.retry is set twice, first in line 2\napp.toml:4:1: kinds.a.rate is the whole number 1; allowed: a table of count, per"},
		{"[kinds.a]\nretry.base = '1s'\nretry = 2\nrate = 1s", "3:1: kinds.a.retry is set twice, first in line 2\napp.toml:4:9: kinds.a.rate is no TOML: expected a top-level item to end with a newline, comment, or EOF, but got 's' instead" + quotes},
		{"[[a]]\nb = 1\n[[a]]\nb = 1s", "4:6: a.b is no TOML: expected a top-level item to end with a newline, comment, or EOF, but got 's' instead" + quotes},
		{"[kinds.a]\n[kinds.b]\n[kinds.a]", "3:2: kinds.a is no TOML: Key 'kinds.a' has already been defined"},
		{"kinds = 1\n[kinds.a]", "2:2: kinds.a is no TOML: Key 'kinds' was already created as a hash"},
		{"kinds = 'invoice.send'", `1:1: kinds is the text "invoice.send"; allowed: a table, such as [kinds."invoice.send"]`},
		// Text that ends too early.
		{`name = "a`, `1:9: name is no TOML: unexpected EOF; expected '"'`},
		{`name = "\`, `1:9: name is no TOML: invalid escape in string '\\x00'`},
		{"max_running = 1\nname =\n", `2:7: name is no TOML: expected value but found '\n' instead`},
		{"name\n", `1:5: name is no TOML: expected '.' or '=', but got '\n' instead`},
		{"= 1", "1:1: the text is no TOML: unexpected '=': key name appears blank"},
		{"max_args = [1,\n2", "2:1: the text is no TOML: expected a comma (',') or array terminator (']'), but got end of file"},
		{"name = '''a\nb", `2:1: the text is no TOML: unexpected EOF; expected "'''"`},
		{"[kinds.", "1:8: the text is no TOML: unexpected end of table name (table names cannot be empty)"},
		// Characters that are not allowed.
		{`name = "a\qb"`, `1:9: name is no TOML: invalid escape in string '\q'`},
		{"name = \"a\x00b\"", "1:9: name is no TOML: TOML files cannot contain control characters: '0x00'"},
		{"name = \"\ufffd\xff\"", "1:12: the text is not UTF-8"},
		{"\xff\xfen\x00", "1:1: the text is not UTF-8"},
		// Numbers.
		{"max_args = 99999999999999999999", "1:12: max_args is no TOML: 99999999999999999999 is out of range for int64"},
		{"max_args = 010", `1:12: max_args is no TOML: Invalid integer "010": cannot have leading zeroes`},
		{"max_args = " + strings.Repeat("_", 1<<19), "1:12: max_args is no TOML: expected value but found '_' instead"},
	} {
		writeConfig(t, "app.toml", c.text)
		_, err := LoadConfig("app.toml")
		if got := fmt.Sprint(err); got != "app.toml:"+c.want {
			t.Errorf("%.60q gives\n%s, want\napp.toml:%s", c.text, got, c.want)
		}
		if !errors.Is(err, ErrConfig) {
			t.Errorf("%.60q: %v does not match ErrConfig", c.text, err)
		}
	}
}

func TestAConfigFileMayBeWrittenInEveryWayOfTOML(t *testing.T) {
	want := Config{Name: "a#]\"=é", Kinds: map[string]Policy{"a.b": {Rate: Rate{Count: 10, Per: time.Second}, Retry: Retry{Factor: 2}}}}
	path := filepath.Join(t.TempDir(), "app.toml")
	for _, text := range []string{
		"name = 'a#]\"=é'\n[kinds.'a.b']\nrate = { count = 10, per = '1s' }\nretry.factor = 2",
		"\ufeffname = \"a#]\\\"=\\u00e9\"\r\nkinds.\"a\\u002eb\".rate.count = 1_0\r\nkinds.'a.b'.rate.per = '1s' # [x]\r\nkinds.'a.b'.retry.factor = 2e0\r\n",
		"name = \"\"\"a#]\"=é\"\"\"\n[kinds]\n'a.b' = {rate = {count = +10,\n# }\nper = '1s',}, retry.factor = 0x2}",
		"name = \"\"\"\na#]\\\n  \"=é\"\"\"\n[ kinds . \"a.b\" . retry ]\nfactor = 2.0\n[kinds.\"a.b\".rate]\n'count'=0b1010\nper=\"\"\"1s\"\"\"",
		"name = '''a#]\"=é'''\n[kinds.\"a.b\".rate]\ncount = 10\nper = '''1s'''\n[kinds.\"a.b\"]\nretry = {factor=2}",
	} {
		writeConfig(t, path, text)
		if cfg, err := LoadConfig(path); err != nil || !reflect.DeepEqual(cfg, want) {
			t.Errorf("%q gives\n%+v, %v, want\n%+v", text, cfg, err, want)
		}
		checkKeyMap(t, text)
	}
}

func TestTheWordsNoneAndNeverSwitchOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.toml")
	writeConfig(t, path, "grace = 'none'\npoll_interval = 'never'\n[kinds.a]\ntimeout = 'none'\n[kinds.b]\ntimeout = '-1s'")
	cfg, err := LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Grace >= 0 || cfg.PollInterval >= 0 || cfg.Kinds["a"].Timeout >= 0 || cfg.Kinds["b"].Timeout >= 0 {
		t.Errorf("not switched off: %+v", cfg)
	}
	writeConfig(t, path, "lease_ttl = 'none'\nunwind = 'never'\ngrace = 'never'")
	_, err = LoadConfig(path)
	if got := faultsOf(t, err); len(got) != 3 {
		t.Errorf("where the words mean nothing they give %v", err)
	}
}

func TestAConfigFileThatCannotBeReadIsTheSystemsError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing.toml")
	_, err := LoadConfig(path)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) || errors.Is(err, ErrConfig) {
		t.Errorf("a missing file gives %v", err)
	}
	_, err = LoadConfig(filepath.Dir(path))
	var pathError *fs.PathError
	if !errors.As(err, &pathError) || errors.Is(err, ErrConfig) {
		t.Errorf("a directory gives %v", err)
	}
}

func TestAConfigFileHasAtMostAMegabyte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.toml")
	text := "max_running = 7\n#" + strings.Repeat("x", maxConfig)
	writeConfig(t, path, text[:maxConfig])
	if cfg, err := LoadConfig(path); err != nil || cfg.MaxRunning != 7 {
		t.Errorf("a file of 1 MiB gives %v, %v", cfg.MaxRunning, err)
	}
	writeConfig(t, path, text[:maxConfig+1])
	_, err := LoadConfig(path)
	if got := fmt.Sprint(err); got != path+": the text is larger than 1 MiB" || !errors.Is(err, ErrConfig) {
		t.Errorf("a larger one gives %v", err)
	}
}

// TestAConfigFileCannotExhaustTheProgram: with such keys and depths a file of
// 1 MiB could take the toml package hours and gigabytes.
func TestAConfigFileCannotExhaustTheProgram(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct{ text, want string }{
		{"x = " + strings.Repeat("[", 1<<19), "1:21: the text has tables and arrays too deep in each other; allowed: 16 levels"},
		{"x = " + strings.Repeat("{a=", 1<<18), "1:51: the text has a key that is too long; allowed: 16 parts and 1024 bytes"},
		{strings.Repeat("a.", 1<<18) + "a = 1", "1:33: the text has a key that is too long; allowed: 16 parts and 1024 bytes"},
		{"[" + strings.Repeat("a.", 1<<18) + "a]", "1:34: the text has a key that is too long; allowed: 16 parts and 1024 bytes"},
		{"[kinds." + strings.Repeat("a", 1<<19) + "]", "1:8: the text has a key that is too long; allowed: 16 parts and 1024 bytes"},
		{`["` + strings.Repeat("a", 1025) + `"]`, "1:2: the text has a key that is too long; allowed: 16 parts and 1024 bytes"},
	} {
		writeConfig(t, "app.toml", c.text)
		_, err := LoadConfig("app.toml")
		if got := fmt.Sprint(err); got != "app.toml:"+c.want || !errors.Is(err, ErrConfig) {
			t.Errorf("%.60q gives\n%s, want\n%s", c.text, got, c.want)
		}
	}
	writeConfig(t, "app.toml", strings.Repeat("[", 100)+"\n[a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p]")
	if _, err := LoadConfig("app.toml"); !errors.Is(err, ErrConfig) {
		t.Errorf("a text that is no TOML anyway gives %v", err)
	}
}

func TestAFaultOfAConfigFileHoldsNoControlCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.toml")
	writeConfig(t, path, `"a\u001b[31m\u202e" = 1`)
	_, err := LoadConfig(path)
	if text := fmt.Sprint(err); strings.ContainsAny(text, "\x1b\u202e\n") || !strings.Contains(text, `\u202e`) {
		t.Errorf("the error is %q", text)
	}
}

func TestOpenReportsEveryFaultOfAConfig(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "rota.db"), Config{
		MaxRunning: math.MaxInt32, Unwind: -1,
		Kinds: map[string]Policy{"a.b": {MaxDeaths: -1, Retry: Retry{Base: -1, Factor: 0.5}}},
	})
	for _, want := range []string{
		"invalid configuration: max_running is 2147483647; allowed: zero (64) to 1000000",
		"invalid configuration: unwind is -1ns; allowed: zero (2s) or more",
		`invalid configuration: kinds."a.b".max_deaths is -1; allowed: zero (3) or more`,
		`invalid configuration: kinds."a.b".retry.base is -1ns; allowed: zero (10s) or more`,
		`invalid configuration: kinds."a.b".retry.factor is 0.5; allowed: zero (2) or 1 to 1000`,
	} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
	if !errors.Is(err, ErrConfig) {
		t.Errorf("%v does not match ErrConfig", err)
	}
}

func TestAConfigFileWinsOverTheHandlersPolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.toml")
	writeConfig(t, path, `
		poll_interval = "never"
		[kinds."mail.send"]
		retry = { max_attempts = 1 }`)
	cfg, err := LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, cfg)
	const mail, report Kind[int] = "mail.send", "report"
	policy := Policy{Timeout: time.Minute, Retry: Retry{MaxAttempts: 5}}
	fail := func(context.Context, *Job, int) error { return errors.New("no") }
	Handle(s, mail, fail, policy)
	Handle(s, report, fail, policy)
	once, err := mail.Enqueue(t.Context(), s, 1, EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	often, err := report.Enqueue(t.Context(), s, 1, EnqueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RunDue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := state(t, s, once.ID); got != Dead {
		t.Errorf("the file allows one attempt, and after it the job is %s", got)
	}
	if got := state(t, s, often.ID); got != Pending {
		t.Errorf("the handler allows five attempts, and after one the job is %s", got)
	}
	if got := s.policy("mail.send").Timeout; got != time.Minute {
		t.Errorf("the file says nothing of a timeout, and the handler's became %v", got)
	}
}

// TestTheConfigPageIsTrue loads what docs/config.md shows and compares the
// errors with those that it prints.
func TestTheConfigPageIsTrue(t *testing.T) {
	page, err := os.ReadFile("docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range []map[string]setter{configKeys(new(Config)), policyKeys(new(Policy)), retryKeys(new(Retry))} {
		for key := range keys {
			if !bytes.Contains(page, []byte("| `"+key+"` |")) {
				t.Errorf("the page's tables lack %s", key)
			}
		}
	}
	blocks := regexp.MustCompile("(?s)```(toml|text)\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) != 5 {
		t.Fatalf("the page has %d blocks, want a file, and two with their errors", len(blocks))
	}
	t.Chdir(t.TempDir())
	for i, want := range []string{"<nil>", string(blocks[2][2]), string(blocks[4][2])} {
		writeConfig(t, "app.toml", string(blocks[max(2*i-1, 0)][2]))
		if _, err := LoadConfig("app.toml"); fmt.Sprint(err) != strings.TrimSpace(want) {
			t.Errorf("block %d gives\n%v, want\n%s", i, err, want)
		}
	}
}

// checkKeyMap compares the map of a TOML text's keys with what the toml package
// read: the same keys, in the same order, each at a place where it stands.
func checkKeyMap(t *testing.T, text string) {
	t.Helper()
	text = strings.TrimLeft(text, "\ufeff")
	m, refused := mapKeys(text)
	var tree map[string]any
	meta, err := toml.Decode(text, &tree)
	if refused != nil || err != nil {
		return
	}
	if m.pos != len(text) {
		t.Errorf("the scan of %q ended at byte %d", text, m.pos)
	}
	var names []string
	for _, key := range m.keys {
		names = append(names, key.name)
	}
	keys := meta.Keys()
	if want := keyNames(keys); !slices.Equal(names, want) {
		t.Fatalf("the map has\n%q, the text\n%q", names, want)
	}
	for i, key := range keys {
		last, at := key[len(key)-1], text[m.keys[i].last:]
		if !strings.HasPrefix(at, last) && !strings.HasPrefix(at, `"`) && !strings.HasPrefix(at, "'") {
			t.Errorf("%s does not stand at byte %d of %q", key, m.keys[i].last, text)
		}
	}
}

func keyNames(keys []toml.Key) (names []string) {
	for _, key := range keys {
		names = append(names, key.String())
	}
	return names
}

func FuzzLoadConfig(f *testing.F) {
	files, err := filepath.Glob("testdata/config/*.toml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, seed := range []string{
		"", "\ufeff\ufeff", "a", "[", "[[a]]\nb=1\n[[a]]\nb=2\n[a.c]", "x=[{a=1},[{b=2}]]", "name='a'\r\ngrace=10s",
		"name=\"\"\"a\"\"\"\"\"\nkinds={a={retry.cap='1s',},}", `"\u0061".'b'."" = "\""`, "kinds.a.timeout='none'\n[kinds]",
		"d=1979-05-27 07:32:00\nf=[inf,-nan,1e3,]", "name='''\n''a'''", "[kinds.a]\nretry.base='1s'\nretry={}", "name=\"\\", "\xff\xfe",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "app.toml")
	f.Fuzz(func(t *testing.T, text []byte) {
		writeConfig(t, path, string(text))
		cfg, err := LoadConfig(path)
		if err != nil {
			lines := strings.Split(strings.TrimLeft(string(text), "\ufeff"), "\n")
			for _, e := range faultsOf(t, err) {
				if !errors.Is(e, ErrConfig) || e.File != path || e.Problem == "" || strings.Contains(e.Error(), "\n") {
					t.Errorf("%#v", e)
				}
				if e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Column > len(lines[e.Line-1])+1 {
					t.Errorf("%v is at no place of %q", e, text)
				}
			}
		} else {
			if err := cfg.validate(); err != nil {
				t.Errorf("loaded, but not allowed: %v", err)
			}
			writeConfig(t, path, configText(cfg))
			if again, err := LoadConfig(path); err != nil || !reflect.DeepEqual(again, cfg) {
				t.Errorf("loaded %+v, then %+v, %v", cfg, again, err)
			}
		}
		checkKeyMap(t, string(text))
	})
}
