#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace reshard {

using Sha256Digest = std::array<std::byte, 32>;
/// 64 lower-case hexadecimal digits.
std::string hex_of(Sha256Digest const& digest);
/// The inverse of hex_of(). Pre: 64 lower-case hexadecimal digits.
Sha256Digest sha256_of_hex(std::string_view hex);

/// SHA-256 of a text, as hex_of() writes it.
std::string sha256_of_text(std::string_view text);

/// SHA-256 of bytes that come in parts.
class Sha256 {
 public:
  Sha256();

  void add(std::span<std::byte const> bytes);
  /// The digest of all bytes so far; more may follow.
  Sha256Digest digest() const;
  std::string hex() const { return hex_of(digest()); }

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace reshard
