#include "stages/read/view_reader.hpp"

#include <bit>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "stages/read/extent_reader.hpp"
#include "tests/support/scratch_folder.hpp"
#include "tests/support/view_files.hpp"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;
using quant::CodeFormat;
using quant::SecondScale;

/// Reads [0, elements) of a view in random parts, in random order, and gives the 16-bit elements.
std::vector<std::uint16_t> read_in_parts(ExtentReader& reader, std::uint32_t file,
                                         std::size_t elements, std::uint64_t most,
                                         std::mt19937_64& random) {
  std::vector<Extent> extents;
  for (std::uint64_t first = 0; first < elements;) {
    std::uint64_t const count = std::min<std::uint64_t>(elements - first, 1 + random() % most);
    extents.push_back({file, first * 2, count * 2, first * 2 + 1});
    first += count;
  }
  std::shuffle(extents.begin(), extents.end(), random);
  Bytes staging(elements * 2 + 1);
  std::size_t const half = extents.size() / 2;  // two rounds
  reader.read(std::span(extents).first(half), staging.data());
  reader.read(std::span(extents).subspan(half), staging.data());
  std::vector<std::uint16_t> result(elements);
  std::memcpy(result.data(), staging.data() + 1, elements * 2);
  return result;
}

void expect_same_elements(std::vector<std::uint16_t> const& found,
                          std::vector<std::uint16_t> const& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_TRUE(same_bf16(found[i], wanted[i])) << "element " << i;
}

TEST(ViewReader, ComputesAnyExtentOfAnyForm) {
  std::mt19937_64 random(31);
  std::vector<SlowWeight> weights;
  weights.push_back(
      random_weight({.codes = CodeFormat::e4m3, .block_rows = 16, .block_columns = 24}, {2, 33, 50},
                    {.scale = DType::f32}, random));
  weights.push_back(random_weight({.codes = CodeFormat::e2m1,
                                   .block_rows = 1,
                                   .block_columns = 16,
                                   .second = SecondScale::divided_by},
                                  {3, 7, 34}, {.scale = DType::f8_e4m3, .seconds = 3}, random));
  weights.push_back(
      random_weight({.codes = CodeFormat::integer, .block_rows = 1, .block_columns = 32},
                    {2, 21, 70}, {.scale = DType::bf16, .zero_points = DType::i32}, random));
  weights.push_back(random_weight({.codes = CodeFormat::e4m3, .block_rows = 0, .block_columns = 0},
                                  {1, 40, 9}, {.scale = DType::f32}, random));
  for (QuantForm const& form : column_forms())
    weights.push_back(random_weight(form.scheme, {1, 64, 40}, form.companions, random));
  Contents contents;
  std::vector<SourceView> views;
  for (SlowWeight const& weight : weights) views.push_back(view_of(weight, contents));
  ScratchFolder const folder("views");
  FileSet files({folder.file("weights", contents.bytes)}, FileSet::Access::read);
  ExtentReader reader(files, views, {}, 3);
  for (int repeat = 0; repeat < 20; ++repeat)
    for (std::uint32_t v = 0; v < weights.size(); ++v) {
      std::vector<std::uint16_t> const wanted = slow_elements(weights[v]);
      expect_same_elements(read_in_parts(reader, 1 + v, wanted.size(), 1 + random() % 300, random),
                           wanted);
    }
}

/// Larger than a slice, with rows shorter and longer than a slice and scales larger than a window.
TEST(ViewReader, WorksSliceBySlice) {
  std::mt19937_64 random(32);
  std::vector<SlowWeight> weights;
  weights.push_back(random_weight({.codes = CodeFormat::e4m3, .block_rows = 3, .block_columns = 0},
                                  {1, 3, 1'200'000}, {}, random));
  weights.push_back(random_weight({.codes = CodeFormat::e2m1, .block_rows = 1, .block_columns = 4},
                                  {1, 2500, 1000}, {.scale = DType::u8}, random));
  Contents contents;
  std::vector<SourceView> views;
  for (SlowWeight const& weight : weights) views.push_back(view_of(weight, contents));
  ScratchFolder const folder("large_views");
  FileSet files({folder.file("weights", contents.bytes)}, FileSet::Access::read);
  ExtentReader reader(files, views, {}, 2);
  for (std::uint32_t v = 0; v < weights.size(); ++v) {
    std::vector<std::uint16_t> const wanted = slow_elements(weights[v]);
    expect_same_elements(read_in_parts(reader, 1 + v, wanted.size(), 2'000'000, random), wanted);
  }
}

TEST(ViewReader, ReadsNoMoreThanTheExtentNeeds) {
  std::mt19937_64 random(33);
  Contents contents;
  SlowWeight const weight =
      random_weight({.codes = CodeFormat::e2m1, .block_rows = 1, .block_columns = 32},
                    {1, 64, 4096}, {.scale = DType::u8}, random);
  std::vector<SourceView> const views{view_of(weight, contents)};
  ScratchFolder const folder("frugal_views");
  FileSet files({folder.file("weights", contents.bytes)}, FileSet::Access::read);
  ExtentReader reader(files, views);
  Bytes staging(2 * 4096);
  std::vector<Extent> const row{{1, 10 * 2 * 4096, 2 * 4096, 0}};
  reader.read(row, staging.data());
  EXPECT_EQ(reader.stats().calls, 2U);
  EXPECT_EQ(
      reader.stats().bytes,
      2048U + 54 * 128);  // the codes of row 10, and its scales with those of all rows behind it
  std::vector<Extent> const next{{1, 11 * 2 * 4096 + 2 * 31, 4, 0}};
  reader.read(next, staging.data());
  EXPECT_EQ(reader.stats().calls, 3U) << "the scales were there";
  EXPECT_EQ(reader.stats().bytes, 2048U + 54 * 128 + 2)
      << "column 31 is the upper half of a byte, 32 the lower half of the next";
}

TEST(ViewReader, RealFilesAndViewsShareOneRound) {
  Contents contents;
  std::vector<float> const numbers{0.5F, -1, 3, 1.0F / 128};
  Bytes stored(16);
  std::memcpy(stored.data(), numbers.data(), 16);
  SourceView view{.kind = ViewKind::add,
                  .name = "norm",
                  .stored = contents.add(DType::f32, {4}, stored),
                  .dtype = DType::bf16,
                  .shape = {4},
                  .constant = 1};
  SourceView widened = view;
  widened.kind = ViewKind::cast;
  widened.dtype = DType::f64;
  widened.constant = 0;
  std::vector<SourceView> const views{view, widened};
  ScratchFolder const folder("mixed_views");
  FileSet files({folder.file("weights", contents.bytes)}, FileSet::Access::read);
  ExtentReader reader(files, views);
  Bytes staging(3 + 16 + 8 + 16);
  std::vector<Extent> const extents{
      {0, view.stored.offset_bytes, 16, 3}, {1, 4, 4, 19}, {1, 0, 4, 23}, {2, 16, 16, 27}};
  reader.read(extents, staging.data());
  EXPECT_TRUE(std::equal(stored.begin(), stored.end(), staging.begin() + 3));
  std::vector<std::uint16_t> sums(4);
  std::memcpy(sums.data(), staging.data() + 19, 8);
  EXPECT_EQ(sums,
            (std::vector<std::uint16_t>{0x4080, 0x3f81, 0x3fc0, 0x0000}));  // 4, 1 + 2^-7, 1.5, 0
  std::vector<double> wide(2);
  std::memcpy(wide.data(), staging.data() + 27, 16);
  EXPECT_EQ(wide, (std::vector<double>{3, 1.0 / 128}));
}

Error error_of(SourceView const& view, std::filesystem::path const& path) {
  FileSet files({path}, FileSet::Access::read);
  std::vector<SourceView> const views{view};
  ExtentReader reader(files, views);
  auto const bytes = static_cast<std::uint64_t>(elements_of(view)) * 2;
  Bytes staging(bytes);
  std::vector<Extent> const all{{1, 0, bytes, 0}};
  try {
    reader.read(all, staging.data());
  } catch (Error const& error) {
    return error;
  }
  return {ErrorKind::internal, "no error"};
}

/// Larger than a slice; terms of several dtypes; the sum is rounded once: 1 + 2^-8 + 2^-8 is exact
/// in F32, a third of it is not.
TEST(ViewReader, AMeanIsSummedInF32AndRoundedOnce) {
  constexpr std::size_t count = 600'000;
  std::mt19937_64 random(33);
  std::uniform_real_distribution<float> values(-3, 3);
  std::vector<float> f32(count);
  std::vector<std::uint16_t> bf16(count);
  std::vector<float> more(count);
  for (std::size_t i = 0; i < count; ++i) {
    f32[i] = values(random);
    bf16[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values(random)) >> 16U);
    more[i] = values(random);
  }
  auto const bytes_of = [](auto const& list) {
    auto const bytes = std::as_bytes(std::span(list));
    return Bytes(bytes.begin(), bytes.end());
  };
  Contents contents;
  SourceView view{.kind = ViewKind::to_dtype,
                  .name = "w",
                  .stored = contents.add(DType::f32, {count}, bytes_of(f32)),
                  .dtype = DType::bf16,
                  .shape = {count}};
  view.averaged.push_back(contents.add(DType::bf16, {count}, bytes_of(bf16)));
  view.averaged.push_back(contents.add(DType::f32, {count}, bytes_of(more)));
  EXPECT_EQ(files_of(view), std::vector<std::uint32_t>{0});
  ScratchFolder const folder("mean_views");
  FileSet files({folder.file("weights", contents.bytes)}, FileSet::Access::read);
  std::vector<SourceView> const views{view};
  ExtentReader reader(files, views);
  std::vector<std::uint16_t> const found = read_in_parts(reader, 1, count, 400'000, random);
  for (std::size_t i = 0; i < count; ++i) {
    float const second = std::bit_cast<float>(std::uint32_t{bf16[i]} << 16U);
    auto const sum = std::bit_cast<std::uint32_t>(((f32[i] + second) + more[i]) / 3.0F);
    ASSERT_EQ(found[i], (sum + 0x7fffU + ((sum >> 16U) & 1U)) >> 16U) << "element " << i;
  }
}

TEST(ViewReader, AnInexactValueIsNamedWithItsTensorAndPlace) {
  constexpr Index count = 600'000;  // the value is in the third slice
  std::vector<float> numbers(count, 0.25F);
  numbers[550'000] = 0.1F;
  Bytes stored(count * 4);
  std::memcpy(stored.data(), numbers.data(), stored.size());
  Contents contents;
  SourceView view{.kind = ViewKind::cast,
                  .name = "gate.bias",
                  .stored = contents.add(DType::f32, {count}, stored),
                  .dtype = DType::bf16,
                  .shape = {count}};
  ScratchFolder const folder("inexact_views");
  std::filesystem::path const path = folder.file("weights", contents.bytes);
  Error const cast = error_of(view, path);
  EXPECT_EQ(cast.kind(), ErrorKind::source);
  for (std::string const& word :
       {path.string(), std::string("'gate.bias'"), std::string("element 550000"),
        std::string("0.1"), std::string("BF16")})
    EXPECT_NE(cast.sentence().find(word), std::string::npos) << word << " in: " << cast.sentence();
  view.kind = ViewKind::add;
  view.constant = -1;
  Error const add = error_of(view, path);
  EXPECT_NE(add.sentence().find("+ (-1)"), std::string::npos) << add.sentence();
  EXPECT_NE(add.sentence().find("element 550000"), std::string::npos) << add.sentence();
}

TEST(ViewReader, AStoredTensorThatIsCutShortIsAnErrorWithItsName) {
  Contents contents;
  SourceView const view{.kind = ViewKind::cast,
                        .name = "w",
                        .stored = contents.add(DType::bf16, {100}, Bytes(200)),
                        .dtype = DType::f16,
                        .shape = {100}};
  ScratchFolder const folder("cut_views");
  std::filesystem::path const path =
      folder.file("short_one", Bytes(contents.bytes.begin(), contents.bytes.end() - 1));
  Error const error = error_of(view, path);
  EXPECT_EQ(error.kind(), ErrorKind::source);
  EXPECT_NE(error.sentence().find("short_one"), std::string::npos) << error.sentence();
}

TEST(ViewReader, AGroupWithoutAScaleIsAnErrorWithItsNumber) {
  std::mt19937_64 random(34);
  SlowWeight weight = random_weight(
      {.codes = CodeFormat::integer, .block_rows = 16, .order = quant::CodeOrder::rows}, {1, 32, 8},
      {.scale = DType::f16, .groups = true}, random);
  for (int const group : {2, -1}) {
    std::memcpy(weight.groups.data() + 12, &group, sizeof group);  // of row 3
    Contents contents;
    SourceView const view = view_of(weight, contents);
    ScratchFolder const folder("groups");
    Error const error = error_of(view, folder.file("weights", contents.bytes));
    EXPECT_EQ(error.kind(), ErrorKind::source);
    EXPECT_NE(
        error.sentence().find(fmt::format(
            "'weight': the group of its input 3 is {}, and there are scales of 2 groups", group)),
        std::string::npos)
        << error.sentence();
  }
}

TEST(ViewReader, HalfAnElementIsOurBug) {
  Contents contents;
  std::vector<SourceView> const views{{.kind = ViewKind::cast,
                                       .name = "w",
                                       .stored = contents.add(DType::f16, {4}, Bytes(8)),
                                       .dtype = DType::f32,
                                       .shape = {4}}};
  ScratchFolder const folder("half_views");
  FileSet files({folder.file("w", contents.bytes)}, FileSet::Access::read);
  ExtentReader reader(files, views);
  Bytes staging(16);
  for (Extent const& extent :
       {Extent{1, 2, 4, 0}, Extent{1, 0, 2, 0}, Extent{1, 12, 8, 0}, Extent{2, 0, 4, 0}}) {
    std::vector<Extent> const one{extent};
    EXPECT_THROW(reader.read(one, staging.data()), Error);
  }
}

}  // namespace
}  // namespace reshard
