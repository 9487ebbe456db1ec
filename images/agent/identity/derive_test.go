package identity

import (
	"bytes"
	"encoding/hex"
	"testing"
)

// RFC 5869, test cases 1 and 3, whose first block is T(1).
func TestHKDF(t *testing.T) {
	cases := []struct{ salt, secret, purpose, key, first string }{
		{"000102030405060708090a0b0c", "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "f0f1f2f3f4f5f6f7f8f9",
			"077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
			"3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"},
		{"", "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "",
			"19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
			"8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"},
	}
	for _, c := range cases {
		raw := func(text string) []byte {
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		key := extract(raw(c.salt), raw(c.secret))
		if hex.EncodeToString(key) != c.key {
			t.Errorf("extract: got %x, want %s", key, c.key)
		}
		if first := expand(key, string(raw(c.purpose))); hex.EncodeToString(first) != c.first {
			t.Errorf("expand: got %x, want %s", first, c.first)
		}
	}
}

func TestDeriveDiffersByPurposeAndSecret(t *testing.T) {
	a := Derive([]byte("one"), "interpreter python-1")
	for name, b := range map[string][]byte{
		"purpose": Derive([]byte("one"), "interpreter python-2"),
		"secret":  Derive([]byte("two"), "interpreter python-1"),
	} {
		if bytes.Equal(a, b) {
			t.Errorf("the same bytes for another %s", name)
		}
	}
	if len(a) != 32 || !bytes.Equal(a, Derive([]byte("one"), "interpreter python-1")) {
		t.Error("not 32 repeatable bytes")
	}
}
