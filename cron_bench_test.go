package rota

import (
	"testing"
	"time"

	"github.com/robfig/cron/v3"
)

var (
	benchTime time.Time
	benchSpec Spec
	benchErr  error
)

var benchSpecs = []struct{ name, spec string }{
	{"minute", "* * * * *"},
	{"nightly", "0 3 * * *"},
	{"office", "*/5 9-17 * * 1-5"},
	{"leapday", "0 0 29 2 *"},
}

// BenchmarkNext is one Next from a fixed instant, beside robfig's.
func BenchmarkNext(b *testing.B) {
	from := time.Date(2025, 3, 1, 12, 34, 56, 0, time.UTC)
	for _, zone := range []string{"UTC", "Europe/Berlin"} {
		for _, c := range benchSpecs {
			b.Run(zone[:3]+"/"+c.name+"/rota", func(b *testing.B) {
				s := mustParse(b, c.spec, zone)
				b.ReportAllocs()
				for b.Loop() {
					benchTime, _ = s.Next(from)
				}
			})
			b.Run(zone[:3]+"/"+c.name+"/robfig", func(b *testing.B) {
				s, err := cron.ParseStandard("CRON_TZ=" + zone + " " + c.spec)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					benchTime = s.Next(from)
				}
			})
		}
	}
}

// BenchmarkNever is what a spec that never fires costs: Rota refuses it when it
// is parsed, robfig takes it and searches five years at every Next.
func BenchmarkNever(b *testing.B) {
	b.Run("rota", func(b *testing.B) {
		for b.Loop() {
			_, benchErr = ParseSpec("0 0 30 2 *", SpecOptions{})
		}
	})
	b.Run("robfig", func(b *testing.B) {
		s, err := cron.ParseStandard("CRON_TZ=UTC 0 0 30 2 *")
		if err != nil {
			b.Fatal(err)
		}
		from := time.Date(2025, 3, 1, 12, 34, 56, 0, time.UTC)
		for b.Loop() {
			benchTime = s.Next(from)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for _, zone := range []string{"UTC", "Europe/Berlin"} {
		for _, c := range benchSpecs {
			b.Run(zone[:3]+"/"+c.name+"/rota", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					benchSpec, benchErr = ParseSpec(c.spec, SpecOptions{Zone: zone})
				}
			})
			b.Run(zone[:3]+"/"+c.name+"/robfig", func(b *testing.B) {
				text := c.spec
				if zone != "UTC" {
					text = "CRON_TZ=" + zone + " " + c.spec
				}
				b.ReportAllocs()
				for b.Loop() {
					_, benchErr = cron.ParseStandard(text)
				}
			})
		}
	}
}
