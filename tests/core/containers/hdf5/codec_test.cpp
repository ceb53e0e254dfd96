#include <cstring>
#include <random>

#include "tests/core/containers/hdf5/container_files.hpp"

namespace reshard::hdf5 {
namespace {

Found random_found(std::mt19937_64& random) {
  auto const below = [&](std::uint64_t bound) { return random() % bound; };
  auto const word = [&] {
    std::string text(below(12), '\0');
    for (char& letter : text) letter = static_cast<char>(random());
    return text;
  };
  auto const dataset = [&] {
    FoundDataset found;
    found.name = word();
    found.dtype = static_cast<DType>(below(static_cast<std::uint64_t>(last_dtype) + 1));
    for (auto left = below(5); left > 0; --left)
      found.shape.push_back(static_cast<Index>(random()));
    for (auto left = below(3); left > 0; --left) found.axes.push_back(word());
    found.domain = word();
    found.offset_bytes = random();
    found.size_bytes = random();
    if (below(2) == 0) found.digest = random();
    return found;
  };
  Found found;
  found.container = below(2) == 0;
  for (auto left = below(4); left > 0; --left) found.attributes.emplace_back(word(), word());
  for (auto left = below(6); left > 0; --left) found.tensors.push_back(dataset());
  for (auto left = below(3); left > 0; --left) found.objects.push_back(dataset());
  return found;
}

void expect_equal(std::vector<FoundDataset> const& a, std::vector<FoundDataset> const& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].dtype, b[i].dtype);
    EXPECT_EQ(a[i].shape, b[i].shape);
    EXPECT_EQ(a[i].axes, b[i].axes);
    EXPECT_EQ(a[i].domain, b[i].domain);
    EXPECT_EQ(a[i].offset_bytes, b[i].offset_bytes);
    EXPECT_EQ(a[i].size_bytes, b[i].size_bytes);
    EXPECT_EQ(a[i].digest, b[i].digest);
  }
}

std::string with_new_checksum(std::string message) {
  std::size_t const end = message.size() - sizeof(std::uint64_t);
  std::uint64_t const crc = crc64(std::as_bytes(std::span(message.data(), end)));
  std::memcpy(message.data() + end, &crc, sizeof crc);
  return message;
}

TEST(Hdf5Codec, UnpackIsTheInverseOfPack) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 500; ++i) {
    Found const found = random_found(random);
    Found const back = unpack(pack(found));
    EXPECT_EQ(back.container, found.container);
    EXPECT_EQ(back.attributes, found.attributes);
    expect_equal(back.tensors, found.tensors);
    expect_equal(back.objects, found.objects);
  }
}

TEST(Hdf5Codec, CutAndFlippedMessagesAreErrors) {
  std::mt19937_64 random(12);
  Found found = random_found(random);
  found.tensors.push_back({"t", DType::bf16, {2, 3}, {"a", "b"}, "d", 1, 2, 3});
  std::string const message = pack(found);
  for (std::size_t size = 0; size < message.size(); ++size)
    EXPECT_THROW(unpack(message.substr(0, size)), Error) << size;
  for (std::size_t at = 0; at < message.size(); ++at) {
    std::string flipped = message;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    EXPECT_THROW(unpack(flipped), Error) << at;
  }
}

TEST(Hdf5Codec, LiesWithARightChecksumEndInAnAnswerOrAnError) {
  std::mt19937_64 random(13);
  std::string const message = pack(random_found(random));
  int errors = 0;
  for (std::size_t at = 0; at + 8 <= message.size(); ++at)
    for (std::uint64_t const lie : {~std::uint64_t{0}, std::uint64_t{1} << 62U,
                                    std::uint64_t{100'000}, std::uint64_t{1}, std::uint64_t{0}}) {
      std::string lying = message;
      std::memcpy(lying.data() + at, &lie, sizeof lie);
      try {
        unpack(with_new_checksum(lying));
      } catch (Error const& error) {
        EXPECT_EQ(error.kind(), ErrorKind::internal);
        ++errors;
      }
    }
  EXPECT_GT(errors, 100);
  EXPECT_THROW(unpack(with_new_checksum(message.substr(0, message.size() - 1) + "12345678")),
               Error);
}

}  // namespace
}  // namespace reshard::hdf5
