#include "core/base/sha256.hpp"

#include <array>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "core/base/error.hpp"

namespace reshard {
namespace {

void check(bool done, char const* what) {
  if (!done)
    fail(ErrorKind::resources,
         "SHA-256: {} failed in OpenSSL. Check whether its configuration on this machine allows "
         "SHA-256.",
         what);
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  check(context_ != nullptr, "EVP_MD_CTX_new");
  check(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1, "EVP_DigestInit_ex");
}

void Sha256::add(std::span<std::byte const> bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1, "EVP_DigestUpdate");
}

std::string Sha256::hex() const {
  Sha256 copy;  // the call that ends a digest spoils its context
  check(EVP_MD_CTX_copy_ex(copy.context_.get(), context_.get()) == 1, "EVP_MD_CTX_copy_ex");
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned bytes = 0;
  check(EVP_DigestFinal_ex(copy.context_.get(), digest.data(), &bytes) == 1, "EVP_DigestFinal_ex");
  std::string text;
  for (unsigned i = 0; i < bytes; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace reshard
