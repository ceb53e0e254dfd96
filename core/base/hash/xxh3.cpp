#include "core/base/hash/xxh3.hpp"

#include <new>

#include <fmt/format.h>
#include <xxhash.h>
#ifdef RESHARD_HAS_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include "core/base/error.hpp"

namespace reshard {
namespace {

std::string digits(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

void Xxh3::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Xxh3::Xxh3() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  RESHARD_EXPECT(XXH3_64bits_reset(state_.get()) == XXH_OK);
}

void Xxh3::add(std::span<std::byte const> bytes) {
  if (!bytes.empty())
    RESHARD_EXPECT(XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()) == XXH_OK);
}

std::uint64_t Xxh3::value() const { return XXH3_64bits_digest(state_.get()); }

std::string Xxh3::digits_128() const { return digits(XXH3_128bits_digest(state_.get())); }

std::string xxh3_128(std::string_view text) {
  return digits(XXH3_128bits(text.data(), text.size()));
}

}  // namespace reshard
