#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace reshard {

/// SHA-256 of bytes that come in parts.
class Sha256 {
 public:
  Sha256();

  void add(std::span<std::byte const> bytes);
  /// Of all bytes so far, 64 lower-case hexadecimal digits; more may follow.
  std::string hex() const;

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace reshard
