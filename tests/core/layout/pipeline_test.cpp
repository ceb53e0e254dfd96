#include <tuple>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/layout/pipeline_chunks.hpp"
#include "tests/core/layout/model.hpp"

namespace reshard::test {
namespace {

std::vector<Index> decoder_sizes(PipelineSpec const& spec) {
  std::vector<Index> sizes;
  for (PipelineChunk const& chunk : pipeline_chunks(spec)) sizes.push_back(extent(chunk.decoder));
  return sizes;
}

std::string refusal(PipelineSpec const& spec) {
  return sentence_of([&] { pipeline_chunks(spec); });
}

TEST(PipelineChunks, EvenWithVirtualStages) {
  auto const chunks =
      pipeline_chunks({.ranks = 2, .chunks_per_rank = 2, .decoder_layers = 8, .mtp_layers = 1});
  ASSERT_EQ(chunks.size(), 4U);
  for (std::size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(chunks[s].rank, static_cast<int>(s % 2));
    EXPECT_EQ(chunks[s].rank_chunk, static_cast<int>(s / 2));
    EXPECT_EQ(chunks[s].decoder,
              (Share{{static_cast<Index>(2 * s), static_cast<Index>(2 * s + 2)}}));
    EXPECT_EQ(chunks[s].embedding, s == 0);
    EXPECT_EQ(chunks[s].head, s == 3);
    EXPECT_EQ(extent(chunks[s].mtp), s == 3 ? 1 : 0);
  }
}

TEST(PipelineChunks, EmbeddingAndLossCountAsLayers) {
  EXPECT_EQ(decoder_sizes({.ranks = 4,
                           .decoder_layers = 14,
                           .account_for_embedding = true,
                           .account_for_loss = true}),
            (std::vector<Index>{3, 4, 4, 3}));
  EXPECT_EQ(decoder_sizes({.ranks = 2, .decoder_layers = 1, .account_for_embedding = true}),
            (std::vector<Index>{0, 1}));
}

TEST(PipelineChunks, FirstAndLastStageOfTheirOwnSize) {
  EXPECT_EQ(
      decoder_sizes(
          {.ranks = 4, .decoder_layers = 12, .first_stage_layers = 3, .last_stage_layers = 1}),
      (std::vector<Index>{3, 4, 4, 1}));
  EXPECT_EQ(decoder_sizes({.ranks = 3, .decoder_layers = 10, .first_stage_layers = 2}),
            (std::vector<Index>{2, 4, 4}));
  EXPECT_EQ(decoder_sizes({.ranks = 3, .decoder_layers = 8, .last_stage_layers = 0}),
            (std::vector<Index>{4, 4, 0}));
  EXPECT_EQ(decoder_sizes(
                {.ranks = 2, .chunks_per_rank = 2, .decoder_layers = 6, .last_stage_layers = 2}),
            (std::vector<Index>{2, 1, 2, 1}));
  EXPECT_EQ(decoder_sizes({.ranks = 1, .decoder_layers = 6, .first_stage_layers = 6}),
            (std::vector<Index>{6}));
}

TEST(PipelineChunks, WrittenLayout) {
  auto const chunks = pipeline_chunks({.ranks = 16,
                                       .chunks_per_rank = 2,
                                       .decoder_layers = 61,
                                       .mtp_layers = 1,
                                       .layout = "Ettt|(tt|)*29,m|L"});
  ASSERT_EQ(chunks.size(), 32U);
  Index layers = 0;
  for (PipelineChunk const& chunk : chunks) layers += extent(chunk.decoder);
  EXPECT_EQ(layers, 61);
  EXPECT_TRUE(chunks[0].embedding);
  EXPECT_EQ(chunks[0].decoder, (Share{{0, 3}}));
  EXPECT_EQ(chunks[16].decoder, (Share{{33, 35}})) << "second chunk of rank 0";
  EXPECT_EQ(chunks[30].rank, 14);
  EXPECT_EQ(extent(chunks[30].mtp), 1);
  EXPECT_TRUE(chunks[30].decoder.empty());
  EXPECT_TRUE(chunks[31].head);
  EXPECT_EQ(chunks[31].rank_chunk, 1);
}

TEST(PipelineChunks, LayoutIgnoresCommasAndWhiteSpaceAndRepeats) {
  EXPECT_EQ(decoder_sizes(
                {.ranks = 3, .decoder_layers = 7, .layout = " E t * 2 , | (t*2,t) * 1 | t t L "}),
            (std::vector<Index>{2, 3, 2}));
  for (std::string const blank : {",", " ", "\t", "\n", "\r"})
    EXPECT_EQ(decoder_sizes({.ranks = 2, .decoder_layers = 2, .layout = "Et" + blank + "|tL"}),
              (std::vector<Index>{1, 1}))
        << static_cast<int>(blank.front());
  EXPECT_EQ(decoder_sizes({.ranks = 4, .decoder_layers = 0, .layout = "E|*3L"}),
            (std::vector<Index>{0, 0, 0, 0}));
}

TEST(PipelineChunks, RefusalsNameBothNumbers) {
  struct Case {
    PipelineSpec spec;
    char const* part;
  };
  Case const cases[] = {
      {{.ranks = 3, .decoder_layers = 8}, "8 decoder layers cannot be spread evenly over 3 chunks"},
      {{.ranks = 0, .decoder_layers = 8}, "pp = 0"},
      {{.ranks = 2, .chunks_per_rank = 2, .decoder_layers = 7, .first_stage_layers = 3},
       "3 layers of the first stage cannot be spread evenly over 2"},
      {{.ranks = 2, .decoder_layers = 6, .first_stage_layers = 5, .last_stage_layers = 2},
       "first stage takes 5 and the last 2 layers, which does not fit 6"},
      {{.ranks = 2, .decoder_layers = 8, .first_stage_layers = 5, .last_stage_layers = 2},
       "does not fit 8"},
      {{.ranks = 1, .decoder_layers = 6, .first_stage_layers = 3, .last_stage_layers = 3},
       "cannot hold both"},
      {{.ranks = 4, .decoder_layers = 12, .first_stage_layers = 3, .account_for_loss = true},
       "set only one of"},
      {{.ranks = 4, .decoder_layers = 14, .account_for_loss = true}, "15 layers"},
      {{.ranks = 2, .decoder_layers = 2, .layout = "Et|t|L"},
       "it has 3 stages, but pp 2 x vpp 1 is 2"},
      {{.ranks = 2, .decoder_layers = 3, .layout = "Et|tL"},
       "it has 2 t and 0 m, but the model has 3"},
      {{.ranks = 2, .decoder_layers = 2, .mtp_layers = 1, .layout = "Et|tL"},
       "and 1 prediction depths"},
      {{.ranks = 1, .decoder_layers = 2000000000}, "are not supported"},
      {{.ranks = 1, .decoder_layers = -1}, "neither may be below zero"},
      {{.ranks = 100000, .chunks_per_rank = 100000, .decoder_layers = 1},
       "more than 100000 chunks"},
  };
  for (Case const& c : cases)
    EXPECT_NE(refusal(c.spec).find(c.part), std::string::npos)
        << c.part << " / " << refusal(c.spec);
}

TEST(PipelineChunks, RefusalsListTheSizesThatFit) {
  EXPECT_EQ(refusal({.ranks = 3, .decoder_layers = 8}),
            "pipeline: 8 decoder layers cannot be spread evenly over 3 chunks. Sizes of pp that "
            "fit: 1, 2, 4, 8. Choose one of these, how many layers the first and the last stage "
            "take, or give a pipeline layout.");
  EXPECT_EQ(refusal({.ranks = 4, .chunks_per_rank = 4, .decoder_layers = 24}),
            "pipeline: 24 decoder layers cannot be spread evenly over 16 chunks. Sizes of pp that "
            "fit with vpp = 4: 2, 3, 6. Sizes of vpp that fit with pp = 4: 1, 2, 3, 6. Choose one "
            "of these, how many layers the first and the last stage take, or give a pipeline "
            "layout.");
  EXPECT_EQ(refusal({.ranks = 2, .chunks_per_rank = 2, .decoder_layers = 7}),
            "pipeline: 7 decoder layers cannot be spread evenly over 4 chunks. Choose how many "
            "layers the first and the last stage take, or give a pipeline layout.");
}

TEST(PipelineChunks, EverySizeThatIsListedFitsAndNoOther) {
  std::vector<PipelineSpec> specs;
  for (int const chunks : {1, 2, 3})
    for (int const layers : {5, 12, 30})
      for (int const first : {-1, 2, 6})
        for (int const last : {-1, 4})
          specs.push_back({.ranks = 7,
                           .chunks_per_rank = chunks,
                           .decoder_layers = layers,
                           .first_stage_layers = first,
                           .last_stage_layers = last});
  std::size_t refused = 0;
  for (PipelineSpec const& spec : specs) {
    std::string const sentence = refusal(spec);
    if (sentence.empty()) continue;
    ++refused;
    bool const several = spec.chunks_per_rank > 1;
    for (auto const& [member, name, least] :
         {std::tuple(&PipelineSpec::ranks, "pp", several ? 2 : 1),
          std::tuple(&PipelineSpec::chunks_per_rank, "vpp", 1)}) {
      if (std::string_view(name) == "vpp" && !several) continue;
      std::string sizes;
      for (int n = least; n <= spec.decoder_layers + 2; ++n) {
        PipelineSpec tried = spec;
        tried.*member = n;
        if (refusal(tried).empty()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
      }
      std::string const begin =
          several ? fmt::format("Sizes of {} that fit with {} = {}: ", name,
                                std::string_view(name) == "pp" ? "vpp" : "pp",
                                std::string_view(name) == "pp" ? spec.chunks_per_rank : spec.ranks)
                  : fmt::format("Sizes of {} that fit: ", name);
      EXPECT_EQ(sentence.find(begin) != std::string::npos, !sizes.empty()) << sentence;
      if (sizes.empty()) continue;
      EXPECT_NE(sentence.find(begin + sizes + ". "), std::string::npos) << sentence << sizes;
    }
  }
  EXPECT_GT(refused, 20U);
}

TEST(PipelineChunks, LayoutTextIsRefusedWithItsColumn) {
  struct Case {
    char const* layout;
    char const* part;
  };
  for (Case const& c :
       {Case{"Et|xL", "column 4"}, Case{"E(tt|L", "'(' at column 2 is never closed"},
        Case{"E(tt)L", "group at column 2 needs a count"}, Case{"Et*L", "the '*' at column 3"},
        Case{"Et*2*2L", "column 5"}, Case{"E((t)*2)*2L", "column 3"},
        Case{"ttL", "it has 0 E and 1 L"}, Case{"EtL|L", "1 E and 2 L"}, Case{"E)L", "column 2"},
        Case{"E(t*99999)*99999L", "more than 100000"},
        Case{"Et*999999999999999999999L", "more than 100000"},
        Case{"E(t|)*60000L", "more than 100000"}}) {
    std::string const sentence = refusal({.ranks = 1, .decoder_layers = 1, .layout = c.layout});
    EXPECT_NE(sentence.find(c.part), std::string::npos) << c.layout << " gave: " << sentence;
  }
}

}  // namespace
}  // namespace reshard::test
