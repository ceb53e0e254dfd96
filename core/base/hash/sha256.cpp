#include "core/base/hash/sha256.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

void check(bool done, char const* what) {
  if (!done)
    fail(ErrorKind::resources,
         "SHA-256: {} failed in OpenSSL. Check that its configuration on this machine allows "
         "SHA-256.",
         what);
}

}  // namespace

std::string hex_of(Sha256Digest const& digest) {
  std::string text;
  for (std::byte const byte : digest) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

Sha256Digest sha256_of_hex(std::string_view hex) {
  Sha256Digest digest{};
  RESHARD_EXPECT(hex.size() == 2 * digest.size());
  auto const value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::byte>(16 * value(hex[2 * i]) + value(hex[2 * i + 1]));
  return digest;
}

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  check(context_ != nullptr, "EVP_MD_CTX_new");
  check(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1, "EVP_DigestInit_ex");
}

void Sha256::add(std::span<std::byte const> bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "EVP_DigestUpdate");
}

std::string sha256_of_text(std::string_view text) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hash.hex();
}

Sha256Digest Sha256::digest() const {
  Sha256 copy;  // the call that ends a digest spoils its context
  check(EVP_MD_CTX_copy_ex(copy.context_.get(), context_.get()) == 1, "EVP_MD_CTX_copy_ex");
  Sha256Digest digest{};
  unsigned bytes = 0;
  check(EVP_DigestFinal_ex(copy.context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                           &bytes) == 1,
        "EVP_DigestFinal_ex");
  RESHARD_EXPECT(bytes == digest.size());
  return digest;
}

}  // namespace reshard
