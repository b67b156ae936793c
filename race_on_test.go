//go:build race

package rota

// raceEnabled: this test binary carries the race detector, under which SQLite,
// being Go here, is some twenty times as slow. Tests that simulate much do less
// then.
const raceEnabled = true
