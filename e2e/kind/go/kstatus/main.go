// What kstatus makes of objects: their files as arguments, `FILE STATUS` a line each.
package main

import (
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func main() {
	for _, file := range os.Args[1:] {
		computed, err := compute(file)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", file, err)
			os.Exit(1)
		}
		fmt.Println(file, computed)
	}
}

func compute(file string) (status.Status, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	// By way of JSON, so that numbers are what the API server's client has.
	text, err = yaml.YAMLToJSON(text)
	if err != nil {
		return "", err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return "", err
	}
	result, err := status.Compute(object)
	if err != nil {
		return "", err
	}
	return result.Status, nil
}
