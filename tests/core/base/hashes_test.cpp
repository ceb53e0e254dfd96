#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/hash/sha256.hpp"
#include "core/base/hash/xxh3.hpp"

namespace reshard {
namespace {

std::span<std::byte const> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// Byte i is (31 i i + 7 i) mod 251.
std::string pattern(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += static_cast<char>((i * i * 31 + i * 7) % 251);
  return text;
}

/// Adds the text in parts of growing size; `look` is called between them.
template <class Hash, class Look>
void add_in_parts(Hash& hash, std::string_view text, Look look) {
  for (std::size_t at = 0, part = 0; at < text.size(); at += part, part = part * 2 + 1) {
    hash.add(bytes_of(text.substr(at, part)));
    look();
  }
}

TEST(Xxh3, HasTheValuesThatXxhsumPrints) {
  EXPECT_EQ(Xxh3().value(), 0x2d06800538d394c2U);
  Xxh3 abc;
  abc.add(bytes_of("abc"));
  EXPECT_EQ(abc.value(), 0x78af5f94892f3950U);
  Xxh3 longer;
  add_in_parts(longer, pattern(100000), [&] { (void)longer.value(); });
  EXPECT_EQ(longer.value(), 0xfb62f22720cdf920U);
}

TEST(Xxh3, Of128BitsHasTheValuesThatXxhsumPrints) {
  EXPECT_EQ(xxh3_128(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(xxh3_128("abc"), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(xxh3_128(pattern(100000)), "e8176f30588347f6fb62f22720cdf920");
  Xxh3 parts;
  EXPECT_EQ(parts.digits_128(), xxh3_128(""));
  add_in_parts(parts, pattern(100000), [&] { (void)parts.digits_128(); });
  EXPECT_EQ(parts.digits_128(), "e8176f30588347f6fb62f22720cdf920");
}

TEST(Sha256, HasTheValuesThatSha256sumPrints) {
  EXPECT_EQ(Sha256().hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.add(bytes_of("abc"));
  EXPECT_EQ(abc.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 longer;
  add_in_parts(longer, pattern(100000), [&] { (void)longer.hex(); });
  EXPECT_EQ(longer.hex(), "ce31ef4d3590613a4f68ad8fe83c4dde03903691adc813cd7300e8e814bec700");
}

}  // namespace
}  // namespace reshard
