// openai-go, as its README has it: chats, streams, tools, Responses, embeddings, models, errors.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(holds bool, what ...any) {
	if !holds {
		panic(fmt.Sprintln(what...))
	}
}

func ask(model string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, MaxTokens: openai.Int(20),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say hello.")},
	}
}

func chats(ctx context.Context, client openai.Client) {
	answer := must(client.Chat.Completions.New(ctx, ask("demo")))
	check(answer.Choices[0].FinishReason == "length", answer.RawJSON())
	check(answer.Usage.CompletionTokens == 20, answer.RawJSON())
	stream := client.Chat.Completions.NewStreaming(ctx, ask("demo"))
	whole := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		check(whole.AddChunk(stream.Current()), stream.Current().RawJSON())
	}
	check(stream.Err() == nil, stream.Err())
	check(whole.Choices[0].FinishReason == "length", whole.Choices[0].FinishReason)
	_, err := client.Chat.Completions.New(ctx, ask("nobody"))
	var refusal *openai.Error
	check(errors.As(err, &refusal), err)
	check(refusal.StatusCode == 404 && refusal.Code == "model_not_found", refusal.RawJSON())
}

func tools(ctx context.Context, client openai.Client) {
	body := ask("demo")
	body.MaxTokens = openai.Int(400)
	body.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
		Name: "weather", Parameters: openai.FunctionParameters{
			"type": "object", "properties": map[string]any{"city": map[string]any{"enum": []string{"Rome", "Oslo"}}},
			"required": []string{"city"},
		},
	})}
	body.ToolChoice = openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "weather"})
	answer := must(client.Chat.Completions.New(ctx, body))
	check(answer.Choices[0].Message.ToolCalls[0].Function.Name == "weather", answer.RawJSON())
}

func items(ctx context.Context, client openai.Client) {
	body := responses.ResponseNewParams{
		Model: "demo", MaxOutputTokens: openai.Int(20),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Say hello.")},
	}
	made := must(client.Responses.New(ctx, body))
	check(made.OutputText() != "", made.RawJSON())
	kept := must(client.Responses.Get(ctx, made.ID, responses.ResponseGetParams{}))
	check(kept.OutputText() == made.OutputText(), kept.RawJSON())
	stream, last := client.Responses.NewStreaming(ctx, body), ""
	for stream.Next() {
		last = stream.Current().Type
	}
	check(stream.Err() == nil && last == "response.incomplete", last, stream.Err())
}

func main() {
	ctx := context.Background()
	client := openai.NewClient() // by OPENAI_BASE_URL and OPENAI_API_KEY
	chats(ctx, client)
	tools(ctx, client)
	items(ctx, client)
	check(must(client.Models.List(ctx)).Data[0].ID == "demo")
	embedder := openai.NewClient(option.WithBaseURL(os.Getenv("EMBEDDER") + "/v1"))
	vectors := must(embedder.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: "embed", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a", "b"}},
	}))
	check(len(vectors.Data) == 2 && len(vectors.Data[0].Embedding) == 16)
	fmt.Println("openai-go")
}
