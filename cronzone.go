package rota

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"
)

// cutZone returns the name behind TZ= or CRON_TZ=.
func cutZone(text string) (name string, ok bool) {
	if name, ok = strings.CutPrefix(text, "CRON_TZ="); !ok {
		if name, ok = strings.CutPrefix(text, "TZ="); !ok {
			return "", false
		}
	}
	return name[:blankIndex(name)], true
}

// zone resolves the zone by name. pos is where the text names it, or -1 if the
// options do.
func (p *parser) zone(name string, pos int) *SpecError {
	inText := pos >= 0
	switch {
	case name == "" && inText:
		return fault("zone", "", pos, "the zone is empty", "write a name such as Europe/Berlin, or UTC")
	case name == "" || name == "UTC":
		p.s.loc = time.UTC
		return nil
	case name == "Local" && !inText:
		p.s.loc = time.Local
		return nil
	case name == "Local", name == "localtime", name == "posixrules":
		return fault("zone", name, pos, fmt.Sprintf("zone %.70q depends on the machine", name),
			"ask for it by SpecOptions.Zone \"Local\", or name the zone")
	case !zoneName(name):
		return fault("zone", name, pos, fmt.Sprintf("zone %.70q is not a zone's name", name), "a name such as Europe/Berlin is allowed")
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return fault("zone", name, pos, fmt.Sprintf("unknown zone %.70q", name), zoneHint(name))
	}
	p.s.loc = loc
	return nil
}

// zoneName reports whether name could be an IANA name. It keeps what is not away
// from the file system: paths such as ../../etc/passwd, and the right/ zones,
// whose seconds differ from everybody's.
func zoneName(name string) bool {
	if len(name) > 64 || strings.HasPrefix(name, "right/") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.Trim(part, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-_") != "" {
			return false
		}
	}
	return true
}

// zoneNames lists the zones of tzdata 2025c, for hints only.
//
//go:embed cronzones.txt
var zoneNames string

// zoneHint suggests up to three zones that are close to an unknown name.
func zoneHint(name string) string {
	type near struct {
		zone string
		far  int
	}
	var found []near
	for zone := range strings.Lines(zoneNames) {
		zone = strings.TrimSpace(zone)
		_, city, _ := strings.Cut(zone, "/")
		switch {
		case zone == name:
			return "the zone exists, but not on this machine: install tzdata, or import time/tzdata"
		case strings.EqualFold(zone, name), strings.EqualFold(city, name):
			found = append(found, near{zone, 0})
		default:
			if d := distance(strings.ToLower(name), strings.ToLower(zone)); d <= 2 {
				found = append(found, near{zone, d})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b near) int { return a.far - b.far })
	if len(found) == 0 {
		return "a name from the IANA list such as Europe/Berlin is allowed"
	}
	hint := "did you mean " + found[0].zone
	for _, n := range found[1:min(3, len(found))] {
		hint += " or " + n.zone
	}
	return hint + "?"
}

// distance returns how many bytes must be inserted, removed or replaced to turn
// a into b, or 3 if that is certainly more than two or b is too long.
func distance(a, b string) int {
	const most = 64
	if len(a)-len(b) > 2 || len(b)-len(a) > 2 || len(b) > most {
		return 3
	}
	var row [most + 1]int // distances of a[:i] to the prefixes of b
	for j := range len(b) + 1 {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
