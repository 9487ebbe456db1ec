// Package identity makes a clone different from its template: clock, entropy,
// name and machine id.
package identity

import (
	"crypto/hmac"
	"crypto/sha256"
)

// Derive returns 32 bytes for one purpose: HKDF-SHA256 (RFC 5869) without salt,
// whose expansion to one hash is a single block.
func Derive(secret []byte, purpose string) []byte {
	return expand(extract(nil, secret), "exec-sandbox "+purpose)
}

func extract(salt, secret []byte) []byte {
	if len(salt) == 0 {
		salt = make([]byte, sha256.Size)
	}
	mac := hmac.New(sha256.New, salt)
	mac.Write(secret)
	return mac.Sum(nil)
}

func expand(key []byte, purpose string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(purpose))
	mac.Write([]byte{1})
	return mac.Sum(nil)
}
