//go:build embedded

package main

import _ "time/tzdata"
